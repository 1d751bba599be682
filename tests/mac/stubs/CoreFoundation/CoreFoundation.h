// Types of Core Foundation and Core Graphics in metal-cpp's signatures.
#pragma once

#include <TargetConditionals.h>
#include <math.h>

typedef double CFTimeInterval;
typedef double CGFloat;
typedef const void* CFTypeRef;
typedef const struct __CFString* CFStringRef;
typedef struct CGColorSpace* CGColorSpaceRef;
struct CGSize {
  CGFloat width;
  CGFloat height;
};
