# SPDX-License-Identifier: MIT
# Writes page.html as C: each line '@FILE@' is that file, and the line '@data@' is where the page's two strings part.
# A script's lines that are comments are for who works on it: they stay out.
function put(line) {
  gsub(/[\\"?]/, "\\\\&", line)      # '?': no trigraphs
  printf "  \"%s\\n\"\n", line
}

function put_file(name,  line) {
  while ((getline line < name) > 0)
    if (line !~ /^ *\/\//)
      put(line)
  close(name)
}

BEGIN {
  print "#include \"config.h\""
  print "#include \"tools/page.h\""
  print "const char oct_page_head[] ="
}
/^@data@$/ {
  print ";"
  print "const char oct_page_tail[] ="
  next
}
/^@[a-z.]+@$/ {
  put_file(substr($0, 2, length($0) - 2))
  next
}
{ put($0) }
END { print ";" }
