#include <metal_stdlib>
using namespace metal;

void wait(event_t e) {  // expect opencl-word: `event_t`
  (void)e;
}
