package apiserver

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	openapi2 "github.com/google/gnostic-models/openapiv2"
	openapi3 "github.com/google/gnostic-models/openapiv3"
	"github.com/munnerz/goautoneg"
	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// openapi serves the OpenAPI documents of one kind.Table. It builds each on first use and keeps only the compressed
// form: the definitions take tens of megabytes.
type openapi struct {
	table   *kind.Table
	version version.Info
	// order lists the groups and versions. ids holds their paths below /openapi/v3.
	order  []schema.GroupVersion
	rows   map[schema.GroupVersion][]*kind.Resource
	hashes sync.Map // document name -> hash
	docs   *documents
}

// documents caches the built documents. Consecutive tables share it.
type documents struct {
	mu    sync.Mutex
	built map[string]builtDocument // keyed by name and media type
}

type builtDocument struct {
	hash string
	gzip []byte
}

func newOpenAPI(t *kind.Table, v version.Info, docs *documents) *openapi {
	o := &openapi{
		table:   t,
		version: v,
		rows:    map[schema.GroupVersion][]*kind.Resource{},
		docs:    docs,
	}
	seen := map[schema.GroupVersion]bool{}
	add := func(gv schema.GroupVersion) {
		if !seen[gv] {
			seen[gv] = true
			o.order = append(o.order, gv)
		}
	}
	for _, r := range documented(t) {
		add(r.GroupVersion())
		o.rows[r.GroupVersion()] = append(o.rows[r.GroupVersion()], r)
	}
	return o
}

// documented returns the rows that OpenAPI describes. The API of metrics-server is not described, because another
// server may serve it.
func documented(t *kind.Table) []*kind.Resource {
	return slices.DeleteFunc(slices.Clone(t.Served()), func(r *kind.Resource) bool {
		return r.Computed && r.Group == metricsv1beta1.GroupName
	})
}

func pathOf(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.String()
}

// hash identifies the content of a document without building it: the document depends only on the binary and on the
// rows of gv, or all rows if gv is empty.
func (o *openapi) hash(of string, gv schema.GroupVersion) string {
	if h, ok := o.hashes.Load(of); ok {
		return h.(string)
	}
	rows := o.rows[gv]
	if gv.Empty() {
		rows = o.table.All()
	}
	sum := sha512.New()
	fmt.Fprintln(sum, o.version.GitVersion, o.version.GitCommit, o.version.BuildDate, of)
	for _, r := range rows {
		fmt.Fprintln(sum, r.GroupVersionKind, r.Plural, r.Verbs, len(r.Subresources), r.Hash)
	}
	h := fmt.Sprintf("%X", sum.Sum(nil))
	o.hashes.Store(of, h)
	return h
}

const (
	protoV2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
	protoV3 = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
)

// wants selects JSON or protobuf. kubectl writes the protobuf type with an @, which RFC 9110 does not allow.
func wants(req *http.Request, proto string) (string, bool) {
	header := req.Header.Get("Accept")
	if header == "" {
		return typeJSON, true
	}
	old := strings.Replace(proto, ".v1.0+", "@v1.0+", 1)
	for _, c := range goautoneg.ParseAccept(header) {
		switch c.Type + "/" + c.SubType {
		case typeJSON, "*/*", "application/*":
			return typeJSON, true
		case proto, old:
			return proto, true
		}
	}
	return "", false
}

func (o *openapi) serveV2(s *Server, w http.ResponseWriter, req *http.Request) {
	others, hash := s.remotes.Load().swagger(func(gv schema.GroupVersion) bool { return stores(o.table, gv) })
	o.serve(s, w, req, "v2", hash, schema.GroupVersion{}, protoV2, func() ([]byte, error) {
		return o.buildV2(others)
	}, encodeV2)
}

func (o *openapi) serveV3(s *Server, w http.ResponseWriter, req *http.Request) {
	rest := strings.Trim(strings.TrimPrefix(req.URL.Path, "/openapi/v3"), "/")
	if rest == "" {
		paths := map[string]any{}
		for _, gv := range o.order {
			p := pathOf(gv)
			paths[p] = map[string]string{"serverRelativeURL": "/openapi/v3/" + p + "?hash=" + o.hash(p, gv)}
		}
		others := s.remotes.Load().openAPI(paths, func(gv schema.GroupVersion) bool { return stores(o.table, gv) })
		w.Header().Set("ETag", `"`+o.hash("v3", schema.GroupVersion{})+others+`"`)
		s.writePlainJSON(w, req, map[string]any{"paths": paths})
		return
	}
	for _, gv := range o.order {
		p := pathOf(gv)
		if p != rest {
			continue
		}
		if h := req.URL.Query().Get("hash"); h != "" {
			if h != o.hash(p, gv) {
				http.Redirect(w, req, "/openapi/v3/"+p+"?hash="+o.hash(p, gv), http.StatusMovedPermanently)
				return
			}
			w.Header().Set("Cache-Control", "public, immutable")
		}
		o.serve(s, w, req, p, "", gv, protoV3, func() ([]byte, error) { return o.buildV3(gv) }, encodeV3)
		return
	}
	s.notFound(w, req)
}

// serve responds with a document. others is a hash of the parts of aggregated API servers; it is added to the ETag.
func (o *openapi) serve(s *Server, w http.ResponseWriter, req *http.Request, name, others string,
	gv schema.GroupVersion, proto string, build func() ([]byte, error), encode func([]byte) ([]byte, error)) {
	media, ok := wants(req, proto)
	if !ok {
		s.fail(w, req, notAcceptable("only application/json and "+proto+" are served"))
		return
	}
	etag := o.hash(name+media, gv) + others
	h := w.Header()
	h.Set("ETag", `"`+etag+`"`)
	h.Add("Vary", "Accept")
	if strings.Contains(req.Header.Get("If-None-Match"), etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	if media == typeJSON {
		encode = nil
	}
	packed, err := o.document(name+media, etag, build, encode)
	if err != nil {
		s.fail(w, req, apierrors.NewInternalError(err))
		return
	}
	h.Set("Content-Type", media)
	if acceptsGzip(req) {
		h.Set("Content-Encoding", "gzip")
		h.Add("Vary", "Accept-Encoding")
		s.writeBytes(w, req.WithContext(req.Context()), http.StatusOK, packed)
		return
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		s.fail(w, req, apierrors.NewInternalError(err))
		return
	}
	w.WriteHeader(http.StatusOK)
	_, _ = io.Copy(w, z) //nolint:gosec // the document is the server's
}

// document returns a compressed document. It calls build only if the content's hash has changed.
func (o *openapi) document(key, hash string, build func() ([]byte, error),
	encode func([]byte) ([]byte, error)) ([]byte, error) {
	o.docs.mu.Lock()
	defer o.docs.mu.Unlock()
	if d := o.docs.built[key]; d.hash == hash {
		return d.gzip, nil
	}
	raw, err := build()
	if err == nil && encode != nil {
		raw, err = encode(raw)
	}
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if _, err := z.Write(raw); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	if o.docs.built == nil {
		o.docs.built = map[string]builtDocument{}
	}
	// Drop the documents of groups that are no longer served.
	maps.DeleteFunc(o.docs.built, func(key string, d builtDocument) bool {
		h, ok := o.hashes.Load(key)
		return ok && !strings.HasPrefix(d.hash, h.(string)) || !ok && !o.serves(key)
	})
	o.docs.built[key] = builtDocument{hash, b.Bytes()}
	// The definitions took tens of megabytes: return them to the OS now rather than in minutes.
	go debug.FreeOSMemory()
	return b.Bytes(), nil
}

// serves reports whether key, a document name and media type, is still served.
func (o *openapi) serves(key string) bool {
	return strings.HasPrefix(key, "v2") ||
		slices.ContainsFunc(o.order, func(gv schema.GroupVersion) bool { return strings.HasPrefix(key, pathOf(gv)) })
}

func (o *openapi) info() map[string]any {
	return map[string]any{"title": "Kubernetes", "version": o.version.GitVersion}
}

func (o *openapi) buildV3(gv schema.GroupVersion) ([]byte, error) {
	schemas, err := o.schemas(gv)
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{
		"openapi": "3.0.0", "info": o.info(), "paths": render(o.paths(gv), 3),
		"components": map[string]any{"schemas": schemas},
	})
}

// Schemas returns the OpenAPI 3 document of a group and version without its paths, as JSON. Each call builds it
// anew.
func (s *Server) Schemas(gv schema.GroupVersion) ([]byte, error) {
	schemas, err := s.openapi().schemas(gv)
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{"openapi": "3.0.0", "components": map[string]any{"schemas": schemas}})
}

// buildV2 builds the OpenAPI 2 document. The paths and definitions of others are added unless this server has the
// name.
func (o *openapi) buildV2(others []*Remote) ([]byte, error) {
	own, err := o.definitions()
	if err != nil {
		return nil, err
	}
	definitions := make(map[string]any, len(own))
	for name, d := range own {
		definitions[name] = d
	}
	paths := map[string]any{}
	for _, gv := range o.order {
		maps.Copy(paths, render(o.paths(gv), 2))
	}
	for _, r := range others {
		add(paths, r.Paths)
		add(definitions, r.Definitions)
	}
	return json.Marshal(map[string]any{"swagger": "2.0", "info": o.info(), "paths": paths, "definitions": definitions})
}

func add(to map[string]any, more map[string]json.RawMessage) {
	for name, value := range more {
		if _, have := to[name]; !have {
			to[name] = value
		}
	}
}

func encodeV2(raw []byte) ([]byte, error) {
	d, err := openapi2.ParseDocument(raw)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(d)
}

func encodeV3(raw []byte) ([]byte, error) {
	d, err := openapi3.ParseDocument(raw)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(d)
}
