# SPDX-License-Identifier: MIT
# OC_WITH_CK
# octool bench measures Concurrency Kit's hash table beside the library's look-ups (Debian's libck-dev), and octool then needs
# libck.so to run: so it is there only where it was asked for. Sets CK_CFLAGS and CK_LIBS, defines HAVE_CK, and sets oc_ck to
# words for the summary.
AC_DEFUN([OC_WITH_CK], [
  AC_ARG_WITH([ck],
    [AS_HELP_STRING([--with-ck=WHICH],
      [yes, auto or no: Concurrency Kit's hash table in octool bench, auto where pkg-config finds it; default: no])],
    [], [with_ck=no])
  AS_CASE([$with_ck], [yes|auto|no], [], [AC_MSG_ERROR([--with-ck=$with_ck: not one of yes, auto, no])])
  oc_ck=no
  AS_IF([test "$with_ck" != no], [
    PKG_CHECK_MODULES([CK], [ck], [oc_ck=yes], [oc_ck=no])
    AS_IF([test "$oc_ck$with_ck" = noyes],
      [AC_MSG_ERROR([--with-ck: pkg-config finds no ck; Debian's libck-dev has it])])
  ])
  AS_IF([test $oc_ck = yes], [AC_DEFINE([HAVE_CK], [1], [Concurrency Kit is there, and wanted.])])
])
