package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

func configMap(name, wave string) string {
	note := ""
	if wave != "" {
		note = "annotations: {kontrol/wave: \"" + wave + "\"}, "
	}
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {" + note + "name: " + name + ", namespace: shop}\ndata: {a: b}\n"
}

func names(list []Object) (out []string) {
	for _, o := range list {
		out = append(out, fmt.Sprintf("%d %s", o.Wave, o.Target))
	}
	return out
}

// TestParse checks that YAML and JSON documents and lists become objects ordered by wave, with definitions and
// namespaces first.
func TestParse(t *testing.T) {
	got, err := Parse([]File{
		{
			"b.yaml",
			[]byte("# a comment\n---\n" + configMap("late", "2") + "---\n\n---\n" + configMap("now", "") + "status: {x: 1}\n"),
		},
		{
			"a.json",
			[]byte(`{"kind":"List","apiVersion":"v1","items":[{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"shop"}},
			{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"x.y.z","creationTimestamp":null}}]}`),
		},
		{"c.yml", []byte(configMap("early", "-1"))},
	})
	require.NoError(t, err)
	require.Equal(t,
		[]string{
			"-1 ConfigMap/shop/early", "0 CustomResourceDefinition/x.y.z", "0 Namespace/shop", "0 ConfigMap/shop/now",
			"2 ConfigMap/shop/late",
		}, names(got))
	require.NotContains(t, string(got[3].JSON), "status")
	require.Equal(t, "b.yaml", got[3].From)
	again, err := Parse([]File{
		{
			"all.yaml",
			[]byte(Inline([]File{{"b.yaml", []byte(configMap("late", "2"))}, {"c.yml", []byte(configMap("early", "-1"))}})),
		},
	})
	require.NoError(t, err)
	require.Equal(t, []string{"-1 ConfigMap/shop/early", "2 ConfigMap/shop/late"}, names(again))
}

// TestBadDocumentsAreNamed checks that errors name the file, the document and the remedy.
func TestBadDocumentsAreNamed(t *testing.T) {
	many := strings.Repeat(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a%d","namespace":"n"}},`,
		kontrol.MaxBundleObjects+1)
	numbers := make([]any, kontrol.MaxBundleObjects+1)
	for i := range numbers {
		numbers[i] = i
	}
	var waves strings.Builder
	for i := range kontrol.MaxBundleWaves + 1 {
		waves.WriteString("---\n" + configMap(fmt.Sprint("w", i), fmt.Sprint(i)))
	}
	for want, text := range map[string]string{
		"there are no objects":              "# nothing\n",
		"document 2: yaml:":                 configMap("a", "") + "---\na: [\n",
		"the document is not an object":     "- 1\n",
		"is in f.yaml already":              configMap("a", "") + "---\n" + configMap("a", ""),
		"must be a kind":                    "apiVersion: v1\nmetadata: {name: x}\n",
		"kustomizations are not built here": "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n",
		"could make itself":                 "apiVersion: kontrol.coracle.dev/v1alpha1\nkind: Bundle\nmetadata: {name: x}\n",
		"must be an integer from -1000":     configMap("a", "soon"),
		"generateName is not supported":     "apiVersion: v1\nkind: Pod\nmetadata: {generateName: x}\n",
		"already set in map":                "kind: a\nkind: b\n",
		"once its aliases are expanded": "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c " +
			"[*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: " +
			"[*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n",
		"nested more than": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: " +
			strings.Repeat("{a: ", 90) + "1" + strings.Repeat("}", 90),
		"more than 500 objects": `{"kind":"List","items":[` +
			strings.TrimSuffix(fmt.Sprintf(many, numbers...), ",") + `]}`,
		"lists are nested":          strings.Repeat(`{"kind":"List","items":[`, 9) + strings.Repeat(`]}`, 9),
		"the objects have 65 waves": waves.String(),
		"spec.template: Too long": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {a: " +
			strings.Repeat("x", kontrol.MaxTemplate) + "}",
		"ConfigMap/x has no namespace: set metadata.namespace, or push the files with --namespace": "apiVersion: v1\n" +
			"kind: ConfigMap\nmetadata: {name: x}\n",
		"Node/a/x has a namespace, but its kind": "apiVersion: v1\nkind: Node\nmetadata: {name: x, namespace: a}\n",
		"only name, namespace, labels and a":     "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, finalizers: [a/b]}\n",
	} {
		t.Run(want, func(t *testing.T) {
			_, err := Parse([]File{{"f.yaml", []byte(text)}})
			require.ErrorContains(t, err, want)
		})
	}
	_, err := Parse([]File{{"f.yaml", bytes.Repeat([]byte("\n"), MaxBytes+1)}})
	require.ErrorContains(t, err, "the files have more than")
}

func archive(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for _, h := range headers {
		body := []byte("x: 1\n")
		if h.Typeflag == tar.TypeReg && h.Size == 0 {
			h.Size = int64(len(body))
		}
		require.NoError(t, w.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg && h.Size == int64(len(body)) {
			_, err := w.Write(body)
			require.NoError(t, err)
		} else if h.Typeflag == tar.TypeReg {
			_, err := io.CopyN(w, zeros{}, h.Size)
			require.NoError(t, err)
		}
	}
	require.NoError(t, w.Close())
	require.NoError(t, z.Close())
	return out.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestHostileArchives checks that names outside the root, decompression bombs, floods of entries and links are
// refused or skipped.
func TestHostileArchives(t *testing.T) {
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644} }
	for name, c := range map[string]struct {
		data []byte
		dir  string
		want string // error
		has  []string
	}{
		"files": {
			archive(t, file("./b.yaml"), file("a/c.yml"), file("README.md"), file(".hidden.yaml")),
			"",
			"",
			[]string{"a/c.yml", "b.yaml"},
		},
		"of a folder": {archive(t, file("./b.yaml"), file("a/c.yml"), file("ab/c.yml")), "a", "", []string{"a/c.yml"}},
		"upwards":     {archive(t, file("a/../../b.yaml")), "", "an entry outside its root", nil},
		"absolute":    {archive(t, file("/etc/b.yaml")), "", "an entry outside its root", nil},
		"backslash":   {archive(t, file(`..\b.yaml`)), "", "an entry outside its root", nil},
		"long":        {archive(t, file(strings.Repeat("a/", 300)+"b.yaml")), "", "a name of more than", nil},
		"a link": {
			archive(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "b.yaml", Linkname: "/etc/passwd"}), "", "", nil,
		},
		"a bomb": {
			archive(t, tar.Header{Typeflag: tar.TypeReg, Name: "b.yaml", Size: MaxBytes + 1}), "", "have more than", nil,
		},
		"a hidden bomb": {
			archive(t, tar.Header{Typeflag: tar.TypeReg, Name: "b.bin", Size: 9 * MaxBytes}, file("c.yaml")), "",
			"cannot be read", nil,
		},
		"no archive": {[]byte("hello"), "", "cannot be read", nil},
		"cut off":    {archive(t, file("b.yaml"))[:40], "", "cannot be read", nil},
	} {
		t.Run(name, func(t *testing.T) {
			files, err := Untar(bytes.NewReader(c.data), true, c.dir)
			if c.want != "" {
				require.ErrorContains(t, err, c.want)
				return
			}
			require.NoError(t, err)
			var has []string
			for _, f := range files {
				has = append(has, f.Name)
			}
			require.Equal(t, c.has, has)
		})
	}
	flood := make([]tar.Header, MaxEntries+1)
	for i := range flood {
		flood[i] = tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprint(i, "/")}
	}
	_, err := Untar(bytes.NewReader(archive(t, flood...)), true, "")
	require.ErrorContains(t, err, "more than 10000 entries")
	many := make([]tar.Header, MaxFiles+1)
	for i := range many {
		many[i] = file(fmt.Sprint(i, ".yaml"))
	}
	_, err = Untar(bytes.NewReader(archive(t, many...)), true, "")
	require.ErrorContains(t, err, "more than 1000 files")
}

// TestDirectories checks that packing a directory is reproducible and that the result can be read again.
func TestDirectories(t *testing.T) {
	dir := fstest.MapFS{
		"a.yaml": {Data: []byte("a: 1")}, "sub/b.json": {Data: []byte("{}")}, ".git/c.yaml": {Data: []byte("c: 1")},
		"README.md": {Data: []byte("# hi")},
	}
	files, err := ReadDir(dir)
	require.NoError(t, err)
	require.Equal(t, []File{{"a.yaml", []byte("a: 1")}, {"sub/b.json", []byte("{}")}}, files)
	var one, two bytes.Buffer
	require.NoError(t, Tar(&one, files))
	require.NoError(t, Tar(&two, files))
	require.Equal(t, one.Bytes(), two.Bytes())
	back, err := Untar(&one, true, "")
	require.NoError(t, err)
	require.Equal(t, files, back)
	dir["big.yaml"] = &fstest.MapFile{Data: make([]byte, MaxBytes)}
	_, err = ReadDir(dir)
	require.ErrorContains(t, err, "the directory's files have more than")
}

// FuzzParse checks that nothing panics and that accepted objects are within the limits.
func FuzzParse(f *testing.F) {
	f.Add([]byte(configMap("a", "1")))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte(`{"kind":"List","items":[{}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := Parse([]File{{"f.yaml", data}})
		if err != nil {
			return
		}
		for _, o := range list {
			if len(o.JSON) > kontrol.MaxTemplate || o.Name == "" || o.Kind == "" {
				t.Fatalf("%+v", o)
			}
		}
	})
}
