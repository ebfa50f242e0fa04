# SPDX-License-Identifier: MIT
# OC_WITH_NCURSES
# octool top draws its screen with ncurses (Debian's libncurses-dev); without it, it writes text. Sets NCURSES_CFLAGS and
# NCURSES_LIBS, defines HAVE_NCURSES, and sets oc_ncurses to words for the summary. --with-ncurses asks for it; without that
# it is there if pkg-config finds it.
AC_DEFUN([OC_WITH_NCURSES], [
  AC_ARG_WITH([ncurses],
    [AS_HELP_STRING([--with-ncurses], [a screen for octool top; default: if ncurses is there])], [], [with_ncurses=auto])
  oc_ncurses=no
  AS_IF([test "x$with_ncurses" != xno], [
    PKG_CHECK_MODULES([NCURSES], [ncurses >= 6.0], [oc_ncurses=yes], [oc_ncurses=no])
    AS_IF([test "$oc_ncurses$with_ncurses" = noyes],
      [AC_MSG_ERROR([--with-ncurses: pkg-config finds no ncurses; Debian's libncurses-dev has it])])
  ])
  AS_IF([test $oc_ncurses = yes], [AC_DEFINE([HAVE_NCURSES], [1], [ncurses is there, and wanted])])
])
