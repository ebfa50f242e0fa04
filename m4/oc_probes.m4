# SPDX-License-Identifier: MIT
# OC_ENABLE_PROBES
# USDT probes need sys/sdt.h (Debian's systemtap-sdt-dev) when building, and nothing at run time. Defines HAVE_SDT and
# sets oc_probes to words for the summary. --enable-probes asks for them; without it they are there if the header is.
AC_DEFUN([OC_ENABLE_PROBES], [
  AC_ARG_ENABLE([probes],
    [AS_HELP_STRING([--enable-probes], [USDT probes; default: if sys/sdt.h is there])], [], [enable_probes=auto])
  oc_probes=no
  AS_IF([test "x$enable_probes" != xno], [
    AC_CHECK_HEADER([sys/sdt.h], [oc_probes=yes])
    AS_IF([test "$oc_probes$enable_probes" = noyes],
      [AC_MSG_ERROR([--enable-probes: there is no sys/sdt.h; Debian's systemtap-sdt-dev has it])])
  ])
  AS_IF([test $oc_probes = yes], [AC_DEFINE([HAVE_SDT], [1], [sys/sdt.h is there, and probes are wanted])])
  AM_CONDITIONAL([HAVE_SDT], [test $oc_probes = yes])
])
