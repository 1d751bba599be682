#include <metal_stdlib>
using namespace metal;

struct Pair {
  int a;
  int b;
};

int sum(Pair p) {
  auto [a, b] = p;  // expect clang: before C++17
  return a + b;
}
