package bundle

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// IsFile reports whether a file of that name is read: *.yaml, *.yml and *.json, unless hidden.
func IsFile(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(name)) && !strings.HasPrefix(path.Base(name), ".")
}

// Untar returns the files with documents in a directory of a tar archive, or in all of it if dir is empty. compressed
// means gzip. Links are skipped. An entry name outside the archive is an error.
func Untar(r io.Reader, compressed bool, dir string) (files []File, err error) {
	if compressed {
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, fmt.Errorf("the archive cannot be read: %w", err)
		}
		r = z
	}
	// Skipped entries are decompressed too, so limit the whole archive.
	t := tar.NewReader(bounded.Reader(r, 8*MaxBytes))
	left := MaxBytes
	for entries := 0; ; entries++ {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
			return files, nil
		}
		if err != nil {
			return nil, fmt.Errorf("the archive cannot be read: %w", err)
		}
		if entries == MaxEntries {
			return nil, fmt.Errorf("the archive has more than %d entries", MaxEntries)
		}
		name, err := inside(h.Name)
		if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg || !IsFile(name) || dir != "" && !strings.HasPrefix(name, dir+"/") {
			continue
		}
		if len(files) == MaxFiles {
			return nil, fmt.Errorf("the archive has more than %d files with documents", MaxFiles)
		}
		if h.Size < 0 || h.Size > int64(left) {
			return nil, fmt.Errorf("the archive's files have more than %d bytes", MaxBytes)
		}
		left -= int(h.Size)
		data := make([]byte, h.Size)
		if _, err := io.ReadFull(t, data); err != nil {
			return nil, fmt.Errorf("%s in the archive cannot be read: %w", name, err)
		}
		files = append(files, File{Name: name, Data: data})
	}
}

// inside returns the clean form of an entry's name, or an error if it is outside the archive.
func inside(name string) (string, error) {
	if len(name) > maxName {
		return "", fmt.Errorf("the archive has a name of more than %d bytes", maxName)
	}
	clean := path.Clean(strings.TrimPrefix(name, "./"))
	if path.IsAbs(name) || clean == ".." || strings.HasPrefix(clean, "../") || strings.ContainsAny(name, "\x00\\") {
		return "", fmt.Errorf("the archive has an entry outside its root: %q", name)
	}
	return clean, nil
}

// ReadDir returns the files with documents of a directory and its subdirectories. Links and hidden directories are
// skipped.
func ReadDir(dir fs.FS) (files []File, err error) {
	left, entries := MaxBytes, 0
	err = fs.WalkDir(dir, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entries++; entries > MaxEntries {
			return fmt.Errorf("the directory has more than %d entries", MaxEntries)
		}
		if d.IsDir() && name != "." && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if !d.Type().IsRegular() || !IsFile(name) {
			return nil
		}
		if len(files) == MaxFiles {
			return fmt.Errorf("the directory has more than %d files with documents", MaxFiles)
		}
		f, err := dir.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		data, err := bounded.All(f, int64(left))
		if large := (*bounded.TooLargeError)(nil); errors.As(err, &large) {
			return fmt.Errorf("the directory's files have more than %d bytes", MaxBytes)
		}
		if err != nil {
			return err
		}
		left -= len(data)
		files = append(files, File{Name: name, Data: data})
		return nil
	})
	return files, err
}

// Tar writes files as a gzipped tar archive. Equal files give equal bytes.
func Tar(w io.Writer, files []File) error {
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	for _, f := range files {
		if err := t.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg,
			Name:     f.Name,
			Size:     int64(len(f.Data)),
			Mode:     0o644,
			Format:   tar.FormatPAX,
		}); err != nil {
			return err
		}
		if _, err := t.Write(f.Data); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}

// Inline joins files into one text for spec.source.inline, each with a comment that names it.
func Inline(files []File) string {
	var out strings.Builder
	for _, f := range files {
		text := strings.TrimRight(string(f.Data), "\n")
		if text == "" {
			continue
		}
		if path.Ext(f.Name) == ".json" || !strings.HasPrefix(text, "---") {
			out.WriteString("---\n")
		}
		fmt.Fprintf(&out, "# %s\n%s\n", f.Name, text)
	}
	return out.String()
}
