package api

import (
	"cmp"
	"errors"
	"fmt"
	"html"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxEntries limits the files in a listing.
const maxEntries = 1000

// hostLogs serves the machine's log files, as the kubelet does at /logs/. Pods may have write access to
// subdirectories, so links out of the directory are not followed, and only regular files and directories are served.
func (s *Server) hostLogs(w http.ResponseWriter, r *http.Request) {
	root, err := os.OpenRoot(s.c.HostLogDir)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	defer root.Close()
	name := cmp.Or(strings.Trim(path.Clean("/"+r.PathValue("path")), "/"), ".")
	// Opening a FIFO must not block.
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrPermission):
		http.Error(w, "Forbidden", http.StatusForbidden)
		return
	case err != nil:
		http.NotFound(w, r)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		http.NotFound(w, r)
	case info.IsDir() && !strings.HasSuffix(r.URL.Path, "/"):
		// Relative: the client's path may have a prefix.
		w.Header().Set("Location", (&url.URL{Path: path.Base(r.URL.Path) + "/"}).String())
		w.WriteHeader(http.StatusMovedPermanently)
	case info.IsDir():
		list(w, f)
	case info.Mode().IsRegular():
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		http.ServeContent(w, r, "", info.ModTime(), f)
	default:
		http.NotFound(w, r)
	}
}

func list(w http.ResponseWriter, f *os.File) {
	entries, err := f.ReadDir(maxEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		http.Error(w, "could not read the folder", http.StatusInternalServerError)
		return
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprint(w, "<pre>\n")
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() {
			name += "/"
		}
		fmt.Fprintf(w, "<a href=\"%s\">%s</a>\n", (&url.URL{Path: name}).String(), html.EscapeString(name))
	}
	fmt.Fprint(w, "</pre>\n")
}
