#include <metal_stdlib>
using namespace metal;

int calls = 0;  // expect clang: constant address space
