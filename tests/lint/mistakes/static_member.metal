#include <metal_stdlib>
using namespace metal;

struct Tile {
  static constexpr int kSide = 8;  // expect clang: constant address space
};
