# SPDX-License-Identifier: MIT

# OC_ENABLE_DEBUG: OC_DEBUG turns the invariant walks on.
AC_DEFUN([OC_ENABLE_DEBUG], [
  AC_ARG_ENABLE([debug],
    [AS_HELP_STRING([--enable-debug], [walk the invariants of the pool and the maps after each change (slow)])],
    [], [enable_debug=no])
  oc_debug=$enable_debug
  AS_VAR_IF([enable_debug], [no], [], [AC_DEFINE([OC_DEBUG], [1], [Walk the invariants after each change.])])
])

# OC_ENABLE_SANITIZER: puts the sanitizer's flags into CFLAGS, CXXFLAGS and LDFLAGS, since every object
# and every link must have them. A change of flags in the environment does not lose them.
AC_DEFUN([OC_ENABLE_SANITIZER], [
  AC_ARG_ENABLE([sanitizer],
    [AS_HELP_STRING([--enable-sanitizer=LIST],
      [address, undefined, or both with a comma; or thread. Implies --with-jemalloc=no])],
    [], [enable_sanitizer=no])
  AS_CASE([$enable_sanitizer],
    [no], [],
    [address|undefined|address,undefined|undefined,address|thread], [],
    [yes], [AC_MSG_ERROR([--enable-sanitizer needs a list: address, undefined, address,undefined or thread])],
    [AC_MSG_ERROR([--enable-sanitizer=$enable_sanitizer: not one of address, undefined, address,undefined, thread])])
  oc_sanitizer=$enable_sanitizer

  AS_VAR_IF([enable_sanitizer], [no], [], [
    oc_flags="-fsanitize=$enable_sanitizer -fno-omit-frame-pointer"
    CFLAGS="$CFLAGS $oc_flags"
    CXXFLAGS="$CXXFLAGS $oc_flags"
    LDFLAGS="$LDFLAGS -fsanitize=$enable_sanitizer"
    AC_MSG_CHECKING([whether $CC links with -fsanitize=$enable_sanitizer])
    AC_LINK_IFELSE([AC_LANG_PROGRAM()], [AC_MSG_RESULT([yes])],
      [AC_MSG_RESULT([no])
       AC_MSG_ERROR([the compiler's sanitizer libraries for $enable_sanitizer are missing])])
  ])
  # liburcu 0.13 has no annotations for ThreadSanitizer: under it guards annotate what they do.
  AS_VAR_IF([enable_sanitizer], [thread],
    [AC_DEFINE([OC_TSAN], [1], [Built for ThreadSanitizer.])])
  # Its shadow memory has no room for the widest address space randomisation that kernels are set to.
  TSAN_RUN=
  AS_VAR_IF([enable_sanitizer], [thread],
    [AS_IF([setarch -R true >/dev/null 2>&1], [TSAN_RUN='setarch -R'])])
  AC_SUBST([TSAN_RUN])
  AM_CONDITIONAL([SANITIZED], [test "$enable_sanitizer" != no])
])
