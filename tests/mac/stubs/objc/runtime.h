// The Objective-C run time's opaque types and the functions that metal-cpp calls.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {
struct objc_class;
struct objc_object {
  struct objc_class* isa;
};
struct objc_selector;
struct objc_method;
typedef struct objc_class* Class;
typedef struct objc_object* id;
typedef struct objc_selector* SEL;
typedef struct objc_method* Method;
typedef struct objc_object Protocol;
typedef bool BOOL;
typedef void (*IMP)(void);

Class objc_lookUpClass(const char* name);
Class objc_getClass(const char* name);
Class object_getClass(id object);
Protocol* objc_getProtocol(const char* name);
SEL sel_registerName(const char* name);
BOOL class_respondsToSelector(Class cls, SEL selector);
IMP class_getMethodImplementation(Class cls, SEL selector);
Method class_getInstanceMethod(Class cls, SEL selector);
BOOL class_addMethod(Class cls, SEL selector, IMP implementation, const char* types);
}
