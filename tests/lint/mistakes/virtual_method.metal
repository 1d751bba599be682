#include <metal_stdlib>
using namespace metal;

struct Base {
  virtual float value() const thread { return 1.0f; }  // expect clang: virtual functions
};
