package apiserver

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/version"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kube-openapi/pkg/spec3"
	"pgregory.net/rapid"

	"github.com/coracle-dev/coracle/pkg/testing/assembled"
)

// No body causes a panic, and a decoded object always has the requested kind.
func FuzzDecode(f *testing.F) {
	p := podNamed("x")
	p.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	j, _ := json.Marshal(p)
	raw, _ := p.Marshal()
	gvk := corev1.SchemeGroupVersion.WithKind("Pod")
	pb := append(append(envelope(nil, gvk, len(raw)), raw...), envelopeTail...)
	f.Add(uint8(0), j)
	f.Add(uint8(1), []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {a: &x [*x]}"))
	f.Add(uint8(2), pb)
	f.Add(uint8(0), []byte(`{"kind":1}`))
	f.Add(uint8(1), []byte("a: &a [*a,*a]\n"))
	req := httptest.NewRequest(http.MethodPost, "/", nil)
	f.Fuzz(func(t *testing.T, m uint8, body []byte) {
		obj := &corev1.Pod{}
		err := decode(req, media(m%3), body, gvk, obj, "", nil)
		if err == nil {
			require.Equal(t, gvk, obj.GroupVersionKind())
			return
		}
		require.Contains(t, []int32{400, 413}, statusOf(err).Code)
	})
}

// No body of the maximum size makes the decoder allocate much more than that size.
func TestHostileBodiesAreRefusedCheaply(t *testing.T) {
	var containers []byte
	for range maxBody / 2 {
		containers = append(containers, 2<<3|2, 0)
	}
	spec := append(binary.AppendUvarint([]byte{2<<3 | 2}, uint64(len(containers))), containers...)
	gvk := corev1.SchemeGroupVersion.WithKind("Pod")
	chain := "a0: &a0 x\n"
	for i := range 40 {
		chain += fmt.Sprintf("a%d: &a%d [*a%d, *a%d, *a%d]\n", i+1, i+1, i, i, i)
	}
	head := "apiVersion: v1\nkind: Pod\n"
	for name, c := range map[string]struct {
		media media
		body  string
		code  int32
	}{
		"containers": {
			mediaJSON, `{"kind":"Pod","apiVersion":"v1","spec":{"containers":[` + strings.Repeat("{},", 1_000_000) + `{}]}}`,
			413,
		},
		"nested":        {mediaJSON, strings.Repeat(`{"spec":`, 200_000), 413},
		"nested, whole": {mediaJSON, strings.Repeat(`{"spec":`, 9000) + "1" + strings.Repeat("}", 9000), 413},
		"protobuf":      {mediaProto, string(append(append(envelope(nil, gvk, len(spec)), spec...), envelopeTail...)), 413},
		"one alias often": {
			mediaYAML,
			head + "metadata: {annotations: {a: &a " + strings.Repeat("x", 1<<20) + strings.Repeat(", b: *a", 1000) + "}}", 413,
		},
		"aliases squared": {mediaYAML, head + chain, 413},
		"many values":     {mediaYAML, head + "x: [" + strings.Repeat("0,", 1<<20) + "0]", 413},
		"keys twice":      {mediaYAML, head + strings.Repeat("x: 0\n", 60_000), 0},
		"brackets":        {mediaYAML, strings.Repeat("[", 100_000), 400},
		"brackets, whole": {mediaYAML, head + "x: " + strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000), 413},
		"escapes":         {mediaYAML, head + "metadata: {annotations: {a: '" + strings.Repeat("<", 3_000_000) + "'}}", 0},
	} {
		t.Run(name, func(t *testing.T) {
			require.LessOrEqual(t, len(c.body), maxBody+64)
			req := httptest.NewRequest(http.MethodPost, "/", nil)
			var before, after goruntime.MemStats
			goruntime.ReadMemStats(&before)
			err := decode(req, c.media, []byte(c.body), gvk, &corev1.Pod{}, metav1.FieldValidationStrict, nil)
			goruntime.ReadMemStats(&after)
			spent := after.TotalAlloc - before.TotalAlloc
			t.Logf("%d MiB: %.100v", spent>>20, err)
			require.Less(t, spent, uint64(256<<20), "allocated in all, most of it garbage at once")
			if c.code != 0 {
				require.EqualValues(t, c.code, statusOf(err).Code, "%.200v", err)
			}
			if err != nil {
				require.Less(t, len(err.Error()), 16<<10)
			}
		})
	}
}

func TestHostileDeleteOptionsAreRefused(t *testing.T) {
	body := "gracePeriodSeconds: 0\ndryRun: [&a " + strings.Repeat("x", 1<<20) + ", *a, *a, *a, *a]\n"
	req := httptest.NewRequest(http.MethodDelete, "/", strings.NewReader(body))
	req.Header.Set("Content-Type", typeYAML)
	_, err := deleteOptions(req)
	require.EqualValues(t, 413, statusOf(err).Code)
}

func TestEnvelopeIsUpstreams(t *testing.T) {
	s := protobuf.NewSerializer(clientscheme.Scheme, clientscheme.Scheme)
	rapid.Check(t, func(rt *rapid.T) {
		p := podNamed(rapid.StringN(0, 300, -1).Draw(rt, "name"))
		p.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
		want, err := runtime.Encode(s, p)
		require.NoError(rt, err)
		raw, err := p.Marshal()
		require.NoError(rt, err)
		got := append(append(envelope(nil, p.GroupVersionKind(), len(raw)), raw...), envelopeTail...)
		require.Equal(rt, want, got)
	})
}

func TestUvarintSize(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.Uint64().Draw(rt, "n")
		require.Equal(rt, len(binary.AppendUvarint(nil, n)), uvarintSize(n))
	})
}

func TestNegotiate(t *testing.T) {
	all := mayProto | mayTable
	table := metav1.SchemeGroupVersion.WithKind("Table")
	for _, c := range []struct {
		accept string
		can    may
		want   answer
		ok     bool
	}{
		{"", all, answer{}, true},
		{"*/*", all, answer{}, true},
		{"application/json", all, answer{}, true},
		{"application/yaml", all, answer{media: mediaYAML}, true},
		{typeProto + ",application/json", all, answer{media: mediaProto}, true},
		{typeProto + ",application/json", mayTable, answer{}, true},
		{typeProto, mayTable, answer{}, false},
		{"text/html", all, answer{}, false},
		{"application/json;as=Table;v=v1;g=meta.k8s.io,application/json", all, answer{as: table}, true},
		{"application/json;as=Table;v=v7;g=meta.k8s.io,application/json", all, answer{}, true},
		{"application/json;as=Table;v=v1;g=meta.k8s.io", mayProto, answer{}, false},
		{"application/yaml", all | mayStream, answer{}, false},
		{"application/json;stream=watch", all | mayStream, answer{}, true},
		{"application/json;pretty=1", all, answer{pretty: true}, true},
		{"application/json;q=0.5,application/yaml;q=0.9", all, answer{media: mediaYAML}, true},
	} {
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		req.Header.Set("Accept", c.accept)
		got, err := negotiate(req, c.can)
		if !c.ok {
			require.Error(t, err, c.accept)
			require.EqualValues(t, 406, statusOf(err).Code)
			continue
		}
		require.NoError(t, err, c.accept)
		require.Equal(t, c.want, got, c.accept)
	}
}

func TestOpenAPIDescribesEveryKind(t *testing.T) {
	o := newOpenAPI(assembled.Kinds(), version.Info{GitVersion: "v1.37.1"}, &documents{})
	for _, gv := range o.order {
		raw, err := o.buildV3(gv)
		require.NoError(t, err, gv)
		var doc spec3.OpenAPI
		require.NoError(t, json.Unmarshal(raw, &doc), gv)
		for _, r := range assembled.Kinds().All() {
			if r.GroupVersion() != gv {
				continue
			}
			path := "/" + pathOf(gv) + "/" + r.Plural
			require.Contains(t, doc.Paths.Paths, path)
			found := false
			for _, s := range doc.Components.Schemas {
				if k, ok := s.Extensions["x-kubernetes-group-version-kind"]; ok {
					b, _ := json.Marshal(k)
					found = found || strings.Contains(string(b), `"kind":"`+r.Kind+`"`)
				}
			}
			require.True(t, found, r.Kind)
		}
	}
	raw, err := o.buildV2(nil)
	require.NoError(t, err)
	_, err = encodeV2(raw)
	require.NoError(t, err)
	t.Logf("v2 is %d bytes", len(raw))
}

func BenchmarkOpenAPIVersion(b *testing.B) {
	o := newOpenAPI(assembled.Kinds(), version.Info{}, &documents{})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := o.buildV3(corev1.SchemeGroupVersion); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	p := podNamed("x")
	p.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	for range 20 {
		p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{
			Name: "VARIABLE", Value: "a value of some length",
		})
	}
	gvk := p.GroupVersionKind()
	raw, _ := p.Marshal()
	j, _ := json.Marshal(p)
	req := httptest.NewRequest(http.MethodPost, "/", nil)
	for m, body := range map[media][]byte{
		mediaJSON: j, mediaProto: append(append(envelope(nil, gvk, len(raw)), raw...), envelopeTail...),
	} {
		b.Run(m.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := decode(req, m, body, gvk, &corev1.Pod{}, "", nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestOnlyDistantPeersGetGzip(t *testing.T) {
	at := func(remote, local string) *http.Request {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = remote
		r.Header.Set("Accept-Encoding", "deflate, gzip;q=1.0")
		return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.ParseIP(local)}))
	}
	big := bytes.Repeat([]byte("x"), compressOver+1)
	s := &Server{}
	for _, c := range []struct {
		remote, local string
		body          []byte
		zipped        bool
	}{
		{"127.0.0.1:5", "127.0.0.1", big, false}, {"10.1.1.1:5", "10.1.1.1", big, false}, {"", "", big, false},
		{"10.1.1.2:5", "10.1.1.1", big, true}, {"10.1.1.2:5", "10.1.1.1", big[1:], false},
	} {
		w := httptest.NewRecorder()
		s.writeBytes(w, at(c.remote, c.local), 200, c.body)
		require.Equal(t, c.zipped, w.Header().Get("Content-Encoding") == "gzip", "%+v", c.remote)
		got := w.Body.Bytes()
		if c.zipped {
			z, err := gzip.NewReader(w.Body)
			require.NoError(t, err)
			got, err = io.ReadAll(z)
			require.NoError(t, err)
		}
		require.True(t, bytes.Equal(c.body, got))
	}
}
