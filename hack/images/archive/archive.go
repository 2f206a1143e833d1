// Package archive writes container images as reproducible OCI archives, without a container engine.
package archive

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

var when = time.Unix(0, 0).UTC()

// Compile compiles a Go package to a static program for an architecture, in the module of folder dir and with more
// flags for go build.
func Compile(dir, arch, pkg string, flags ...string) ([]byte, error) {
	out, err := os.MkdirTemp("", "coracle-image-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(out)
	binary := filepath.Join(out, "program")
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid=", "-o", binary},
		flags...)
	build := exec.Command("go", append(args, pkg)...)
	build.Dir = dir
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+arch)
	if text, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, text)
	}
	return os.ReadFile(binary)
}

// File is one entry of an image: a folder if its name ends in a slash, else a link or a file. Names do not begin
// with a slash.
type File struct {
	Name, Link string
	Mode       int64
	Data       []byte
}

// layer returns a tar of the files and their parent folders.
func layer(files []File) ([]byte, error) {
	have := map[string]bool{}
	for _, f := range files {
		have[f.Name] = true
	}
	for _, f := range files {
		for dir := path.Dir(strings.TrimSuffix(f.Name, "/")); dir != "."; dir = path.Dir(dir) {
			if !have[dir+"/"] {
				have[dir+"/"] = true
				files = append(files, File{Name: dir + "/", Mode: 0o755})
			}
		}
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		h := &tar.Header{
			Name:     f.Name,
			Mode:     f.Mode,
			ModTime:  when,
			Size:     int64(len(f.Data)),
			Typeflag: tar.TypeReg,
			Format:   tar.FormatPAX,
		}
		if f.Link != "" {
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.Link, 0o777
		} else if strings.HasSuffix(f.Name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.Data); err != nil {
			return nil, err
		}
	}
	err := w.Close() // writes the end marker
	return buf.Bytes(), err
}

// Image is an image for one architecture (a GOARCH), with one layer.
type Image struct {
	Arch   string
	Config v1.Config
	Files  []File
}

// build does not compress the layer, because loading it from the same disk is faster that way.
func (i Image) build() (v1.Image, error) {
	data, err := layer(i.Files)
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.AppendLayers(base, static.NewLayer(data, types.OCIUncompressedLayer))
	if err != nil {
		return nil, err
	}
	whole, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	whole.Architecture, whole.OS, whole.Config, whole.Created = i.Arch, "linux", i.Config, v1.Time{Time: when}
	return mutate.ConfigFile(image, whole)
}

// Write writes an archive of an image.
func Write(out string, i Image, names ...string) error {
	image, err := i.build()
	if err != nil {
		return err
	}
	return write(out, names, func(dir layout.Path, option layout.Option) error { return dir.AppendImage(image, option) })
}

// WriteIndex writes an archive of an image for several architectures: an index.
func WriteIndex(out string, images []Image, names ...string) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, i := range images {
		image, err := i.build()
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: i.Arch}},
		})
	}
	return write(out, names, func(dir layout.Path, option layout.Option) error { return dir.AppendIndex(index, option) })
}

// write writes an archive of what add appends to its index, once for each name.
func write(out string, names []string, add func(layout.Path, layout.Option) error) error {
	dir, err := os.MkdirTemp("", "coracle-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	index, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	for _, name := range names {
		err := add(index, layout.WithAnnotations(map[string]string{
			"io.containerd.image.name":          name,
			"org.opencontainers.image.ref.name": name[strings.LastIndexByte(name, ':')+1:],
		}))
		if err != nil {
			return err
		}
	}
	archive, err := pack(dir)
	if err != nil {
		return err
	}
	if err := os.WriteFile(out+".new", archive, 0o644); err != nil {
		return err
	}
	if err := os.Rename(out+".new", out); err != nil {
		return err
	}
	fmt.Printf("%s: %s, %d KB\n", out, strings.Join(names, ", "), len(archive)>>10)
	return nil
}

// pack returns a tar of a folder, sorted by name.
func pack(dir string) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		if d.IsDir() {
			return w.WriteHeader(&tar.Header{Name: rel + "/", Mode: 0o755, ModTime: when, Typeflag: tar.TypeDir})
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{
			Name:     rel,
			Mode:     0o644,
			ModTime:  when,
			Size:     int64(len(data)),
			Typeflag: tar.TypeReg,
		}); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	if err != nil {
		return nil, err
	}
	err = w.Close() // writes the end marker
	return buf.Bytes(), err
}
