# SPDX-License-Identifier: MIT

# OC_ADD_FLAG(VARIABLE, FLAG): appends FLAG to VARIABLE where the C compiler takes it.
AC_DEFUN([OC_ADD_FLAG], [
  AS_VAR_PUSHDEF([oc_cache], [oc_cv_flag_$2])
  AC_CACHE_CHECK([whether $CC takes $2], [oc_cache], [
    oc_save_CFLAGS=$CFLAGS
    CFLAGS="$CFLAGS -Werror $2"
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM()], [AS_VAR_SET([oc_cache], [yes])], [AS_VAR_SET([oc_cache], [no])])
    CFLAGS=$oc_save_CFLAGS
  ])
  AS_VAR_IF([oc_cache], [yes], [AS_VAR_APPEND([$1], [" $2"])])
  AS_VAR_POPDEF([oc_cache])
])

# OC_WARNINGS: WARN_CFLAGS for every C file of ours, and --enable-werror.
AC_DEFUN([OC_WARNINGS], [
  AC_ARG_ENABLE([werror],
    [AS_HELP_STRING([--enable-werror], [a compiler warning stops the build])],
    [], [enable_werror=no])
  WARN_CFLAGS=
  m4_foreach_w([oc_flag],
    [-Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef],
    [OC_ADD_FLAG([WARN_CFLAGS], oc_flag)])
  AS_VAR_IF([enable_werror], [yes], [WARN_CFLAGS="$WARN_CFLAGS -Werror"])
  AC_SUBST([WARN_CFLAGS])
])
