# SPDX-License-Identifier: MIT

# OC_CUDA_HEADER: where the machine has a cuda.h, our own declarations of the driver's functions are compared with it.
# Nothing is built with it: a difference is a warning here, and a failure of make check.
# Sets CUDA_CPPFLAGS and the conditional HAVE_CUDA_HEADER.
AC_DEFUN([OC_CUDA_HEADER], [
  AC_ARG_WITH([cuda-header],
    [AS_HELP_STRING([--with-cuda-header=DIR],
      [folder of a cuda.h to compare liboc's own declarations with, or no; default: CUDA_HOME's, or the usual places])],
    [], [with_cuda_header=auto])
  AS_CASE([$with_cuda_header],
    [no], [oc_folders=],
    [auto|yes], [oc_folders="${CUDA_HOME:+$CUDA_HOME/include} /usr/local/cuda/include /opt/cuda/include /usr/include"],
    [oc_folders=$with_cuda_header])
  AC_MSG_CHECKING([for a cuda.h to compare with])
  oc_cuda_folder=
  for oc_folder in $oc_folders; do
    AS_IF([test "x$oc_cuda_folder" = x && test -f "$oc_folder/cuda.h"], [oc_cuda_folder=$oc_folder])
  done
  AC_MSG_RESULT([${oc_cuda_folder:-none}])
  AS_CASE([$with_cuda_header], [no|auto|yes], [],
    [AS_IF([test "x$oc_cuda_folder" = x], [AC_MSG_ERROR([no cuda.h in $with_cuda_header])])])

  CUDA_CPPFLAGS=
  oc_cuda_text="no cuda.h to compare the declarations with"
  AS_IF([test "x$oc_cuda_folder" != x], [
    CUDA_CPPFLAGS="-isystem $oc_cuda_folder"
    AC_MSG_CHECKING([whether liboc/cuda_abi.h agrees with it])
    AS_IF([$CC -std=gnu11 -I"$srcdir" $CUDA_CPPFLAGS -c "$srcdir/tests/cuda_abi_check.c" -o conftest.$ac_objext \
             >&AS_MESSAGE_LOG_FD 2>&1],
      [oc_agrees=yes], [oc_agrees=no])
    rm -f conftest.$ac_objext
    AC_MSG_RESULT([$oc_agrees])
    oc_cuda_text="agrees with $oc_cuda_folder/cuda.h"
    AS_IF([test "$oc_agrees" = no], [
      oc_cuda_text="differs from $oc_cuda_folder/cuda.h: see config.log"
      AC_MSG_WARN([liboc/cuda_abi.h $oc_cuda_text])
    ])
  ])
  AC_SUBST([CUDA_CPPFLAGS])
  AM_CONDITIONAL([HAVE_CUDA_HEADER], [test "x$oc_cuda_folder" != x])
])
