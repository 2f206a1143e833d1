// Command sbom writes a CycloneDX 1.6 document of the modules in a Go binary: sbom [-out FILE] [-version V] BINARY
// [NAME=BINARY...]. Further binaries are embedded in the first, and may be compressed with zstd (RFC 8878). The
// output is reproducible.
package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
)

type document struct {
	Schema       string       `json:"$schema"`
	Format       string       `json:"bomFormat"`
	SpecVersion  string       `json:"specVersion"`
	SerialNumber string       `json:"serialNumber"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version,omitempty"`
	PURL       string     `json:"purl,omitempty"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn"`
}

func main() {
	out := flag.String("out", "", "file to write; standard output if empty")
	version := flag.String("version", "", "version of the first binary")
	flag.Parse()
	if flag.NArg() == 0 {
		fail(fmt.Errorf("usage: sbom [-out FILE] [-version V] BINARY [NAME=BINARY...]"))
	}
	var programs []program
	for _, arg := range flag.Args() {
		name, path, named := strings.Cut(arg, "=")
		if !named {
			name, path = filepath.Base(arg), arg
		}
		data, err := os.ReadFile(path)
		if err != nil {
			fail(err)
		}
		p, err := read(name, data)
		if err != nil {
			fail(fmt.Errorf("%s: %w", path, err))
		}
		programs = append(programs, p)
	}
	d := describe(programs)
	if *version != "" {
		d.Metadata.Component.Version = *version
	}
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		fail(err)
	}
	text = append(text, '\n')
	if *out == "" {
		_, err = os.Stdout.Write(text)
	} else if err = os.MkdirAll(filepath.Dir(*out), 0o755); err == nil {
		err = os.WriteFile(*out, text, 0o644)
	}
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "sbom:", err)
	os.Exit(1)
}

type program struct {
	name string
	sum  [sha256.Size]byte
	info *buildinfo.BuildInfo
}

func read(name string, data []byte) (program, error) {
	if bytes.HasPrefix(data, []byte{0x28, 0xb5, 0x2f, 0xfd}) { // a zstd frame
		decoder, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(1<<30))
		if err != nil {
			return program{}, err
		}
		defer decoder.Close()
		if data, err = decoder.DecodeAll(data, nil); err != nil {
			return program{}, err
		}
	}
	info, err := buildinfo.Read(bytes.NewReader(data))
	return program{name: name, sum: sha256.Sum256(data), info: info}, err
}

// describe lists the programs, the first of which embeds the others, and each of their modules once.
func describe(programs []program) document {
	d := document{
		Schema:      "http://cyclonedx.org/schema/bom-1.6.schema.json",
		Format:      "CycloneDX",
		SpecVersion: "1.6",
		Version:     1,
	}
	serial := sha256.New()
	modules := map[string]component{}
	for i, p := range programs {
		serial.Write(p.sum[:])
		self := component{
			Type: "application", Ref: p.name, Name: p.name, Version: p.info.Main.Version,
			Hashes:     []hash{{"SHA-256", hex.EncodeToString(p.sum[:])}},
			Properties: []property{{"coracle:package", p.info.Path}},
		}
		for _, s := range p.info.Settings {
			if s.Key == "GOOS" || s.Key == "GOARCH" || s.Key == "CGO_ENABLED" {
				self.Properties = append(self.Properties, property{"go:" + s.Key, s.Value})
			}
		}
		uses := dependency{Ref: p.name}
		add := func(c component) {
			modules[c.Ref] = c
			uses.DependsOn = append(uses.DependsOn, c.Ref)
		}
		std := strings.TrimPrefix(strings.Fields(p.info.GoVersion)[0], "go")
		add(component{Type: "library", Ref: purl("std", std), Name: "std", Version: std, PURL: purl("std", std)})
		for _, m := range p.info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			c := component{
				Type:    "library",
				Ref:     purl(m.Path, m.Version),
				Name:    m.Path,
				Version: m.Version,
				PURL:    purl(m.Path, m.Version),
			}
			// go.sum has a SHA-256 over the hashes of a module's files.
			if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:")); err == nil &&
				len(sum) == sha256.Size {
				c.Hashes = []hash{{"SHA-256", hex.EncodeToString(sum)}}
			}
			add(c)
		}
		slices.Sort(uses.DependsOn)
		d.Dependencies = append(d.Dependencies, uses)
		if i == 0 {
			d.Metadata.Component = self
			continue
		}
		d.Components = append(d.Components, self)
		d.Dependencies[0].DependsOn = slices.Insert(d.Dependencies[0].DependsOn, i-1, p.name)
	}
	for _, c := range modules {
		d.Components = append(d.Components, c)
	}
	slices.SortFunc(d.Components, func(a, b component) int { return strings.Compare(a.Ref, b.Ref) })
	id := serial.Sum(nil)[:16]
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // a UUID of version 8 (RFC 9562), made from a hash
	d.SerialNumber = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
	return d
}

func purl(path, version string) string { return "pkg:golang/" + path + "@" + version }
