// CPU kernels for bfloat16 decoders: linear layers, paged attention, and what lies between them.
// AVX-512 with BF16 instructions; `supported()` says whether this processor has them.
//
// - Weights are read as they lie in the snapshot, row-major [out, in]: nothing is packed at start.
// - A row's result does not depend on the rows beside it, to the last bit: every sum is taken in an
//   order that the row alone decides. So batching, chunking and speculation change no token.
// - No torch headers: pointers come in as integers, and one build serves every torch version.
// - Threads share work in small pieces (pool.h), so that a busy core slows a step, not stops it.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

#include "attention.h"
#include "elementwise.h"
#include "linear.h"
#include "pool.h"
#include "quantized.h"

namespace {

template <typename T>
T* pointer(PyObject* value) {
  return static_cast<T*>(PyLong_AsVoidPtr(value));
}

int64_t integer(PyObject* value) { return PyLong_AsLongLong(value); }

float number(PyObject* value) { return static_cast<float>(PyFloat_AsDouble(value)); }

PyObject* wrong_count() {
  PyErr_SetString(PyExc_TypeError, "wrong number of arguments");
  return nullptr;
}

PyObject* done() {
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_NONE;
}

PyObject* py_supported(PyObject*, PyObject*) {
  __builtin_cpu_init();
  bool yes = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  return PyBool_FromLong(yes);
}

PyObject* py_set_threads(PyObject*, PyObject* count) {
  int64_t threads = integer(count);
  if (PyErr_Occurred()) return nullptr;
  pool().set_threads(static_cast<int>(threads));
  Py_RETURN_NONE;
}

PyObject* py_linear(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 8) return wrong_count();
  Linear a{pointer<bf16>(args[0]), pointer<bf16>(args[1]), pointer<bf16>(args[2]),
           pointer<void>(args[3]), integer(args[4]),       integer(args[5]),
           integer(args[6]),       static_cast<int>(integer(args[7])),
           nullptr};
  if (PyErr_Occurred()) return nullptr;
  Py_BEGIN_ALLOW_THREADS;
  linear(a);
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

PyObject* py_quantized_linear(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 9) return wrong_count();
  const bf16* x = pointer<bf16>(args[0]);
  QuantizedLinear a{pointer<uint8_t>(args[1]), pointer<bf16>(args[2]),
                    pointer<void>(args[3]),    integer(args[4]),
                    integer(args[5]),          integer(args[6]),
                    static_cast<int>(integer(args[7])),
                    nullptr,                   nullptr,
                    nullptr};
  const int bits = static_cast<int>(integer(args[8]));
  if (PyErr_Occurred()) return nullptr;
  Py_BEGIN_ALLOW_THREADS;
  quantized_linear(a, x, bits);
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

PyObject* py_quantized_rows(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 6) return wrong_count();
  const uint8_t* w = pointer<uint8_t>(args[0]);
  const int64_t* rows = pointer<int64_t>(args[1]);
  float* y = pointer<float>(args[2]);
  int64_t number_of_rows = integer(args[3]), k = integer(args[4]), bits = integer(args[5]);
  if (PyErr_Occurred()) return nullptr;
  if (bits == 4)
    quantized_rows<4>(w, rows, y, number_of_rows, k);
  else
    quantized_rows<8>(w, rows, y, number_of_rows, k);
  Py_RETURN_NONE;
}

PyObject* py_attention(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 16) return wrong_count();
  Attention a{pointer<bf16>(args[0]),    pointer<bf16>(args[1]),    pointer<bf16>(args[2]),
              pointer<int64_t>(args[3]), pointer<int64_t>(args[4]), pointer<int64_t>(args[5]),
              pointer<bf16>(args[6]),    integer(args[7]),          integer(args[8]),
              integer(args[9]),          integer(args[10]),         integer(args[11]),
              integer(args[12]),         integer(args[13]),         number(args[14]),
              number(args[15])};
  if (PyErr_Occurred()) return nullptr;
  Py_BEGIN_ALLOW_THREADS;
  attention(a);
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

PyObject* py_rms_norm(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 6) return wrong_count();
  const float* x = pointer<float>(args[0]);
  const float* weight = pointer<float>(args[1]);
  bf16* y = pointer<bf16>(args[2]);
  int64_t rows = integer(args[3]), n = integer(args[4]);
  float eps = number(args[5]);
  if (PyErr_Occurred()) return nullptr;
  pool().run(rows, 8, [&](int64_t row) { rms_norm_row(x + row * n, weight, y + row * n, n, eps); });
  return done();
}

PyObject* py_add_rms_norm(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 6) return wrong_count();
  const float* x = pointer<float>(args[0]);
  const float* weight = pointer<float>(args[1]);
  float* y = pointer<float>(args[2]);
  int64_t rows = integer(args[3]), n = integer(args[4]);
  float eps = number(args[5]);
  if (PyErr_Occurred()) return nullptr;
  pool().run(rows, 8,
             [&](int64_t row) { add_rms_norm_row(x + row * n, weight, y + row * n, n, eps); });
  return done();
}

PyObject* py_soft_cap(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 4) return wrong_count();
  float* x = pointer<float>(args[0]);
  int64_t rows = integer(args[1]), n = integer(args[2]);
  float cap = number(args[3]);
  if (PyErr_Occurred()) return nullptr;
  pool().run(rows, 1, [&](int64_t row) { soft_cap_row(x + row * n, n, cap); });
  return done();
}

PyObject* py_rotate(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 15) return wrong_count();
  Rotate a{pointer<bf16>(args[0]),    pointer<float>(args[1]), pointer<int64_t>(args[2]),
           pointer<int64_t>(args[3]), pointer<float>(args[4]), pointer<float>(args[5]),
           pointer<bf16>(args[6]),    pointer<bf16>(args[7]),  pointer<bf16>(args[8]),
           integer(args[9]),          integer(args[10]),       integer(args[11]),
           integer(args[12]),         integer(args[13]),       number(args[14])};
  if (PyErr_Occurred()) return nullptr;
  pool().run(a.tokens, 4, [&](int64_t token) { rotate_token(a, token); });
  return done();
}

template <Gate GATE>
PyObject* py_gate(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 4) return wrong_count();
  const bf16* gate_up = pointer<bf16>(args[0]);
  bf16* y = pointer<bf16>(args[1]);
  int64_t rows = integer(args[2]), n = integer(args[3]);
  if (PyErr_Occurred()) return nullptr;
  pool().run(rows, 4, [&](int64_t row) { gate_row<GATE>(gate_up + row * 2 * n, y + row * n, n); });
  return done();
}

PyMethodDef methods[] = {
    {"supported", py_supported, METH_NOARGS, nullptr},
    {"set_threads", py_set_threads, METH_O, nullptr},
    {"linear", reinterpret_cast<PyCFunction>(py_linear), METH_FASTCALL, nullptr},
    {"quantized_linear", reinterpret_cast<PyCFunction>(py_quantized_linear), METH_FASTCALL,
     nullptr},
    {"quantized_rows", reinterpret_cast<PyCFunction>(py_quantized_rows), METH_FASTCALL, nullptr},
    {"attention", reinterpret_cast<PyCFunction>(py_attention), METH_FASTCALL, nullptr},
    {"rms_norm", reinterpret_cast<PyCFunction>(py_rms_norm), METH_FASTCALL, nullptr},
    {"rotate", reinterpret_cast<PyCFunction>(py_rotate), METH_FASTCALL, nullptr},
    {"add_rms_norm", reinterpret_cast<PyCFunction>(py_add_rms_norm), METH_FASTCALL, nullptr},
    {"soft_cap", reinterpret_cast<PyCFunction>(py_soft_cap), METH_FASTCALL, nullptr},
    {"silu_mul", reinterpret_cast<PyCFunction>(py_gate<SILU>), METH_FASTCALL, nullptr},
    {"gelu_mul", reinterpret_cast<PyCFunction>(py_gate<GELU_TANH>), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_cpu", nullptr, -1, methods,
                      nullptr,               nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__cpu() { return PyModule_Create(&module); }
