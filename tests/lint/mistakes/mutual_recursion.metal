#include <metal_stdlib>
using namespace metal;

template <typename T>
T odd(T n);

template <typename T>
T even(T n) {  // expect recursion: `even`
  return n == 0 ? 1 : odd(n - 1);
}

template <typename T>
T odd(T n) {  // expect recursion: `odd`
  return n == 0 ? 0 : even(n - 1);
}

int use(int n) { return even(n); }
