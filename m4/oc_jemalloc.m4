# SPDX-License-Identifier: MIT

# OC_WITH_JEMALLOC: where host metadata lives.
#   private  an archive with renamed, hidden symbols, that tools/deps.sh built (the default where there is one)
#   host     weak references: the process's jemalloc if it has one, else libc (the default otherwise)
#   no       libc
# Sets JEMALLOC_CPPFLAGS, JEMALLOC_LDFLAGS for libraries and JEMALLOC_ARCHIVE for programs, and one of
# OC_JEMALLOC_PRIVATE, OC_JEMALLOC_HOST or neither.
AC_DEFUN([OC_WITH_JEMALLOC], [
  AC_ARG_WITH([jemalloc],
    [AS_HELP_STRING([--with-jemalloc=WHICH],
      [private, host or no; default: private if tools/deps.sh has built it, else host])],
    [], [with_jemalloc=auto])
  AC_ARG_VAR([OC_JEMALLOC_DIR],
    [folder of the private jemalloc, with include/ and lib/; default: where tools/deps.sh puts it])
  AS_CASE([$with_jemalloc], [auto|private|host|no], [],
    [AC_MSG_ERROR([--with-jemalloc=$with_jemalloc: not one of private, host, no])])

  AS_IF([test "$enable_sanitizer" != no], [
    AS_CASE([$with_jemalloc], [private|host],
      [AC_MSG_WARN([--enable-sanitizer implies --with-jemalloc=no: sanitizers watch libc's malloc only])])
    with_jemalloc=no
  ])

  # The same folder as in tools/deps.sh.
  AS_IF([test "x$OC_JEMALLOC_DIR" = x],
    [OC_JEMALLOC_DIR="${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/liboc/jemalloc-$(uname -m)"])
  JEMALLOC_CPPFLAGS=
  JEMALLOC_ARCHIVE=
  JEMALLOC_LDFLAGS=
  AS_CASE([$with_jemalloc], [auto|private], [
    AC_MSG_CHECKING([for a private jemalloc in $OC_JEMALLOC_DIR])
    OC_TRY_PRIVATE_JEMALLOC([oc_have_private=yes], [oc_have_private=no])
    AC_MSG_RESULT([$oc_have_private])
    # An archive of objects can't carry the private jemalloc along: a static liboc takes the host's.
    AS_IF([test "$oc_have_private$enable_static" = yesyes], [
      AS_VAR_IF([with_jemalloc], [private],
        [AC_MSG_ERROR([--with-jemalloc=private and --enable-static don't go together])])
      oc_have_private=no
    ])
    AS_CASE([$with_jemalloc,$oc_have_private],
      [*,yes], [with_jemalloc=private],
      [private,no], [AC_MSG_ERROR([no private jemalloc that links in $OC_JEMALLOC_DIR; tools/deps.sh builds one])],
      [with_jemalloc=host])
  ])

  AS_CASE([$with_jemalloc],
    [private], [
      JEMALLOC_CPPFLAGS="-isystem $OC_JEMALLOC_DIR/include"
      JEMALLOC_ARCHIVE="$OC_JEMALLOC_DIR/lib/liboc_jemalloc.a"
      # For libraries, past libtool, which would write the archive's path into the installed liboc.la.
      JEMALLOC_LDFLAGS="-Wl,$JEMALLOC_ARCHIVE -Wl,--exclude-libs,liboc_jemalloc.a"
      AC_DEFINE([OC_JEMALLOC_PRIVATE], [1], [Host metadata lives in a jemalloc of our own, prefix oc_je_.])
      oc_jemalloc_text="private jemalloc in $OC_JEMALLOC_DIR"],
    [host], [
      AC_DEFINE([OC_JEMALLOC_HOST], [1], [Host metadata lives in the process's jemalloc if it has one.])
      oc_jemalloc_text="the process's jemalloc, else libc"],
    [oc_jemalloc_text="libc"])
  AC_SUBST([JEMALLOC_CPPFLAGS])
  AC_SUBST([JEMALLOC_ARCHIVE])
  AC_SUBST([JEMALLOC_LDFLAGS])
])

# OC_TRY_PRIVATE_JEMALLOC(YES, NO): whether the archive is there and links.
AC_DEFUN([OC_TRY_PRIVATE_JEMALLOC], [
  AS_IF([test -f "$OC_JEMALLOC_DIR/lib/liboc_jemalloc.a"], [
    oc_save_CPPFLAGS=$CPPFLAGS
    oc_save_LIBS=$LIBS
    CPPFLAGS="$CPPFLAGS -isystem $OC_JEMALLOC_DIR/include"
    LIBS="$OC_JEMALLOC_DIR/lib/liboc_jemalloc.a -pthread $DL_LIBS $LIBS"
    AC_LINK_IFELSE(
      [AC_LANG_PROGRAM([[#include <jemalloc/jemalloc.h>]],
        [[oc_je_dallocx(oc_je_mallocx(64, MALLOCX_TCACHE_NONE), MALLOCX_TCACHE_NONE);]])],
      [$1], [$2])
    CPPFLAGS=$oc_save_CPPFLAGS
    LIBS=$oc_save_LIBS
  ], [$2])
])
