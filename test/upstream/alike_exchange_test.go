package upstream_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// exchange is a request that both servers get. In its path and body, $UID, $RV and $CONTINUE stand for values from
// earlier answers of the server that gets it.
type exchange struct {
	what         string // the case, for reports
	method, path string
	body         string
	header       []string // names and values in turn
}

// answer is the answer of one server, without the parts that differ between runs.
type answer struct {
	code   int
	fields map[string]string // the values of the body and the header, by path
}

// server is one of the two API servers.
type server struct {
	url    string
	client *http.Client

	mu            sync.Mutex
	uid, rv, next string
}

func newServer(t *testing.T, config *rest.Config) *server {
	t.Helper()
	config = rest.CopyConfig(config)
	config.UserAgent = "alike/1.0"
	// The names of the administrators differ.
	config.Impersonate = rest.ImpersonationConfig{UserName: "tester", Groups: []string{"system:masters"}}
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	t.Cleanup(client.CloseIdleConnections)
	return &server{url: config.Host, client: client, uid: "no-uid", rv: "1", next: "none"}
}

const maxBody = 64 << 20

// answerTime is how long an answer may take. Only requests that wait for a future revision take more than a moment.
const answerTime = 15 * time.Second

func (s *server) send(ctx context.Context, x exchange) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	s.mu.Lock()
	fill := strings.NewReplacer("$UID", s.uid, "$RV", s.rv, "$CONTINUE", s.next)
	s.mu.Unlock()
	req, err := http.NewRequestWithContext(ctx, x.method, s.url+fill.Replace(x.path),
		strings.NewReader(fill.Replace(x.body)))
	if err != nil {
		return answer{}, err
	}
	if x.body == "" {
		req.Body, req.ContentLength = http.NoBody, 0
	}
	for i := 0; i < len(x.header); i += 2 {
		req.Header.Set(x.header[i], x.header[i+1])
	}
	res, err := s.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	if err != nil {
		return answer{}, err
	}
	a := answer{code: res.StatusCode, fields: map[string]string{"code": fmt.Sprint(res.StatusCode)}}
	for _, name := range []string{
		"Content-Type", "Retry-After", "Warning", "Location", "Cache-Control", "Www-Authenticate",
	} {
		if v := res.Header.Values(name); len(v) > 0 {
			a.fields["header "+name] = plain(strings.Join(v, " | "))
		}
	}
	for _, name := range []string{"Audit-Id", "Etag"} {
		a.fields["has "+name] = fmt.Sprint(res.Header.Get(name) != "")
	}
	all := slices.DeleteFunc(documents(res.Header.Get("Content-Type"), raw), isProgress)
	for i, doc := range all {
		if i == 0 {
			s.remember(doc)
		}
		flatten(a.fields, fmt.Sprintf("body%s", strings.Repeat("'", i)), "", doc)
	}
	return a, nil
}

// isProgress reports whether an event is a progress bookmark. A server may send those at any time.
func isProgress(event any) bool {
	is, _ := event.(map[string]any)
	if is["type"] != "BOOKMARK" {
		return false
	}
	text, _ := json.Marshal(is["object"])
	return !bytes.Contains(text, []byte("initial-events-end"))
}

// remember keeps the values that later requests refer to.
func (s *server) remember(doc any) {
	object, _ := doc.(map[string]any)
	meta, _ := object["metadata"].(map[string]any)
	s.mu.Lock()
	defer s.mu.Unlock()
	if uid, _ := meta["uid"].(string); uid != "" {
		s.uid = uid
	}
	if rv, _ := meta["resourceVersion"].(string); rv != "" {
		s.rv = rv
	}
	if next, _ := meta["continue"].(string); next != "" {
		s.next = next
	}
}

// documents decodes a body: one document, or the events of a watch. A body in an unknown encoding becomes one string.
func documents(contentType string, raw []byte) []any {
	var all []any
	switch {
	case len(raw) == 0:
		return nil
	case strings.HasPrefix(contentType, "application/json"):
		d := json.NewDecoder(bytes.NewReader(raw))
		for {
			var doc any
			if err := d.Decode(&doc); err != nil {
				if err != io.EOF {
					all = append(all, "not JSON: "+string(raw))
				}
				return all
			}
			all = append(all, doc)
		}
	case strings.HasPrefix(contentType, "application/yaml"):
		var doc any
		if err := yaml.Unmarshal(raw, &doc); err != nil {
			return []any{"not YAML: " + err.Error()}
		}
		return []any{doc}
	case strings.HasPrefix(contentType, "application/cbor") && !strings.Contains(contentType, "seq"):
		var doc any
		if err := direct.Unmarshal(raw, &doc); err != nil {
			return []any{"not CBOR: " + err.Error()}
		}
		return []any{doc}
	case strings.HasPrefix(contentType, "application/vnd.kubernetes.protobuf") && !strings.Contains(contentType, "stream"):
		obj, gvk, err := scheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
		if runtime.IsNotRegisteredError(err) {
			return []any{fmt.Sprintf("protobuf of %s", gvk)}
		} else if err != nil {
			return []any{"not protobuf: " + err.Error()}
		}
		text, err := json.Marshal(obj)
		if err != nil {
			return []any{"no JSON: " + err.Error()}
		}
		var doc any
		if err := json.Unmarshal(text, &doc); err != nil {
			return []any{"no JSON: " + err.Error()}
		}
		return []any{doc}
	}
	return []any{string(raw)}
}

// varying matches the parts of texts that differ between runs.
var varying = []struct {
	is *regexp.Regexp
	as string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`), "TIME"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? \+0000 UTC( m=\S+)?`), "TIME"},
	{regexp.MustCompile(`eyJ[\w-]+\.[\w-]+\.[\w-]+`), "TOKEN"},
	{regexp.MustCompile(`:(6443|7443)\b`), ":PORT"},
	{regexp.MustCompile(`\b10\.43\.\d+\.\d+\b`), "ADDRESS"},
	{regexp.MustCompile(`\bgen-[a-z0-9]{5}\b`), "gen-SUFFIX"},
	{regexp.MustCompile(`Too large resource version: \d+, current: \d+`), "Too large resource version: RV, current: RV"},
	{regexp.MustCompile(`too old resource version: \d+ \(\d+\)`), "too old resource version: RV (RV)"},
	{regexp.MustCompile(`0x[0-9a-f]{6,}`), "POINTER"},
	{regexp.MustCompile(`^\d+[smh]$`), "AGE"},
	{regexp.MustCompile(`:3\d{4}/TCP`), ":NODEPORT/TCP"},
	{regexp.MustCompile(`resourceVersion\\*":\\*"\d+`), `resourceVersion":"RV`},
	{regexp.MustCompile(`resourceVersion:\d+`), `resourceVersion:RV`},
}

func plain(s string) string {
	for _, v := range varying {
		s = v.is.ReplaceAllString(s, v.as)
	}
	return s
}

var number = regexp.MustCompile(`^[1-9]\d*$`)

// place returns the path element for an element of a list: its index, or in discovery, where one server has more,
// its name.
func place(i int, key string, element any) string {
	m, _ := element.(map[string]any)
	switch key {
	case "managedFields": // sorted by time in seconds, then by name
		return fmt.Sprintf("%v %v %v", m["manager"], m["operation"], m["subresource"])
	case "groups", "resources", "subresources", "versions", "items":
	default:
		return fmt.Sprint(i)
	}
	if meta, is := m["metadata"].(map[string]any); is && m["versions"] != nil {
		m = meta
	}
	for _, by := range []string{"name", "resource", "subresource", "version"} {
		if name, is := m[by].(string); is {
			return name
		}
	}
	return fmt.Sprint(i)
}

// flatten puts a document's values into fields by their path. It leaves out empty values, because protobuf, in
// which the servers store objects, does not distinguish null, an empty list and an absent one.
func flatten(fields map[string]string, path, key string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			flatten(fields, path+"."+k, k, e)
		}
	case []any:
		if key == "finalizers" { // upstream does not keep the order of a namespace's finalizers
			v = slices.SortedFunc(slices.Values(v), func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
		for i, e := range v {
			flatten(fields, fmt.Sprintf("%s[%s]", path, place(i, key, e)), key, e)
		}
	case string:
		switch {
		case key == "resourceVersion" && number.MatchString(v):
			v = "RV"
		case key == "continue" && v == "":
			return
		case key == "continue":
			v = "CONTINUE"
		}
		fields[path] = fmt.Sprintf("%q", plain(v))
	case nil:
	default:
		if key == "nodePort" || key == "healthCheckNodePort" {
			v = "PORT"
		}
		fields[path] = fmt.Sprint(v)
	}
}

type difference struct{ field, theirs, ours string }

func (d difference) String() string {
	return fmt.Sprintf("%s: upstream %s, Coracle %s", d.field, d.theirs, d.ours)
}

const mostDifferences = 8

func differences(theirs, ours answer) (all []difference) {
	if theirs.code != ours.code {
		return []difference{{"code", brief(theirs), brief(ours)}}
	}
	names := maps.Clone(theirs.fields)
	maps.Copy(names, ours.fields)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		a, hasA := theirs.fields[name]
		b, hasB := ours.fields[name]
		if a == b && hasA == hasB {
			continue
		}
		if !hasA {
			a = "nothing"
		}
		if !hasB {
			b = "nothing"
		}
		all = append(all, difference{name, cut(a), cut(b)})
	}
	return all
}

func brief(a answer) string {
	return fmt.Sprintf("%d %s", a.code, cut(a.fields["body.message"]))
}

func cut(s string) string {
	if len(s) > 500 {
		return s[:500] + "..."
	}
	return s
}
