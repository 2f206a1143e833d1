package upstream_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/coracle-dev/coracle/test/host"
	"github.com/coracle-dev/coracle/test/upstream"
)

const space = "alike"

// whole are the kinds that get every request. The other kinds, whose lists and watches have fewer options, are
// tried only with ALIKE=. set.
var whole = []string{"configmaps", "pods", "deployments.apps", "namespaces", "boats.harbour.example.com"}

// TestUpstreamAnswersAlike sends the same requests to the API servers of upstream and of Coracle, and compares
// codes, texts, headers and bodies. The list deliberate has the intended differences with their reasons. ALIKE, a
// regular expression, selects cases of all kinds by name; ALIKE_LOG names a file for all exchanges with a
// difference that is not deliberate.
func TestUpstreamAnswersAlike(t *testing.T) {
	upstream.Needs(t)
	h := host.New(t)
	// An upstream server under load can take long to become ready; Coracle's starts in the meantime.
	theirs := upstream.New(t, h, upstream.Config{
		Flags: map[string][]string{
			upstream.APIServer: {"--disable-admission-plugins=ServiceAccount", "--anonymous-auth=false"},
		},
	})
	serve(t, h, "--disable-admission-plugins", "EventRateLimit,DenyServiceExternalIPs,DefaultStorageClass")
	p := newPair(t, theirs.REST(), h.REST())

	p.prepare()
	for _, s := range scenarios() {
		if p.wanted(s.name) {
			p.run(s.name, s.exchanges)
			t.Logf("%s: %d requests so far", s.name, p.sent)
		}
	}
	for _, k := range p.subjects() {
		p.try(k)
	}
	p.report()
}

// pair is both servers and the differences found so far.
type pair struct {
	t            *testing.T
	theirs, ours *server
	config       [2]*rest.Config
	only         *regexp.Regexp

	mu    sync.Mutex
	sent  int
	found map[difference][]string // the exchanges with this difference
	used  map[int]bool            // the indexes of the deliberate differences that occurred
}

func newPair(t *testing.T, theirs, ours *rest.Config) *pair {
	t.Helper()
	return &pair{
		t: t, theirs: newServer(t, theirs), ours: newServer(t, ours), config: [2]*rest.Config{theirs, ours},
		only:  regexp.MustCompile(os.Getenv("ALIKE")),
		found: map[difference][]string{}, used: map[int]bool{},
	}
}

func (p *pair) wanted(name string) bool { return p.only.MatchString(name) }

func (p *pair) both(x exchange) (theirs, ours answer) {
	p.t.Helper()
	var errs [2]error
	var wait sync.WaitGroup
	wait.Go(func() { theirs, errs[0] = p.theirs.send(p.t.Context(), x) })
	wait.Go(func() { ours, errs[1] = p.ours.send(p.t.Context(), x) })
	wait.Wait()
	if errs[0] != nil { // upstream's handler panicked
		theirs = answer{fields: map[string]string{"body.message": "no answer"}}
		p.t.Logf("upstream: %s %s: %v", x.method, x.path, errs[0])
	}
	if errs[1] != nil {
		ours = answer{fields: map[string]string{"body.message": "no answer"}}
		p.t.Errorf("Coracle: %s %s: %v", x.method, x.path, errs[1])
	}
	return theirs, ours
}

func (p *pair) run(name string, all []exchange) {
	for _, x := range all {
		p.compare(name, x)
	}
}

// runTogether is run for slow requests that change nothing: it sends them concurrently.
func (p *pair) runTogether(name string, all []exchange) {
	const atOnce = 24
	for page := range slices.Chunk(all, atOnce) {
		var wait sync.WaitGroup
		for _, x := range page {
			wait.Go(func() { p.compare(name, x) })
		}
		wait.Wait()
	}
}

func (p *pair) compare(name string, x exchange) {
	theirs, ours := p.both(x)
	all := differences(theirs, ours)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent++
	where := name + ": " + x.what
	left := 0
	for _, d := range all {
		if p.isDeliberate(where, d) {
			continue
		}
		if left++; left > mostDifferences {
			break
		}
		p.found[d] = append(p.found[d], fmt.Sprintf("%s (%s %s)", where, x.method, cut(x.path)))
	}
}

// isDeliberate reports whether a difference is deliberate, and records that it occurred.
func (p *pair) isDeliberate(where string, d difference) bool {
	for i, known := range deliberate {
		if known.in.MatchString(where) && known.is.MatchString(d.String()) {
			p.used[i] = true
			return true
		}
	}
	return false
}

const mostExamples = 3

func (p *pair) report() {
	p.t.Logf("%d requests to each", p.sent)
	type group struct {
		difference
		in []string
	}
	var groups []group
	for d, in := range p.found {
		groups = append(groups, group{d, in})
	}
	slices.SortFunc(groups, func(a, b group) int {
		if c := len(b.in) - len(a.in); c != 0 {
			return c
		}
		return strings.Compare(a.in[0]+a.field, b.in[0]+b.field)
	})
	var log strings.Builder
	for _, g := range groups {
		fmt.Fprintf(&log, "%d times %s\n  %s\n", len(g.in), g.difference, strings.Join(g.in, "\n  "))
		p.t.Errorf("%d times %s\n  %s", len(g.in), g.difference, strings.Join(g.in[:min(len(g.in), mostExamples)], "\n  "))
	}
	if file := os.Getenv("ALIKE_LOG"); file != "" {
		require.NoError(p.t, os.WriteFile(filepath.Clean(file), []byte(log.String()), 0o600))
	}
	if p.only.String() != "" {
		return
	}
	for i, known := range deliberate {
		if !p.used[i] {
			p.t.Errorf("no longer different: in %s, %s: %s", known.in, known.is, known.why)
		}
	}
}

// must sends a request that both servers have to accept.
func (p *pair) must(method, path, body string, header ...string) {
	p.t.Helper()
	theirs, ours := p.both(exchange{"", method, path, body, header})
	require.Less(p.t, theirs.code, 300, "upstream: %s %s: %s", method, path, brief(theirs))
	require.Less(p.t, ours.code, 300, "Coracle: %s %s: %s", method, path, brief(ours))
}

// prepare creates the objects that requests refer to, and waits until both servers serve them.
func (p *pair) prepare() {
	p.t.Helper()
	for _, m := range prepared {
		p.must("POST", m.path, m.body, "Content-Type", yamlType)
	}
	for _, probe := range probes {
		require.Eventually(p.t, func() bool {
			theirs, ours := p.both(probe)
			return theirs.code == 200 && ours.code == 200
		}, host.Patience, 50*time.Millisecond, "%s", probe.path)
	}
}

// subjects returns the kinds that both servers serve and upstream's table has an object for, and the kinds of the
// prepared definitions.
func (p *pair) subjects() (all []*subject) {
	p.t.Helper()
	served := [2]map[schema.GroupVersionResource]metav1.APIResource{
		resources(p.t, p.config[0]), resources(p.t, p.config[1]),
	}
	subs := map[schema.GroupVersionResource][]metav1.APIResource{}
	for gvr, r := range served[0] {
		if parent, _, is := strings.Cut(r.Name, "/"); is {
			gvr.Resource = parent
			subs[gvr] = append(subs[gvr], r)
		}
	}
	for _, list := range subs {
		slices.SortFunc(list, func(a, b metav1.APIResource) int { return strings.Compare(a.Name, b.Name) })
	}
	for _, s := range append(stubs(p.t, space), customStubs()...) {
		r, has := served[0][s.gvr]
		if _, too := served[1][s.gvr]; !has || !too {
			continue
		}
		s.object.SetAPIVersion(s.gvr.GroupVersion().String())
		s.object.SetKind(r.Kind)
		labels := s.object.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels[chosen] = "yes"
		s.object.SetLabels(labels)
		all = append(all, &subject{stub: s, namespaced: r.Namespaced, resource: r, subs: subs[s.gvr]})
	}
	slices.SortFunc(all, func(a, b *subject) int { return strings.Compare(a.gvr.String(), b.gvr.String()) })
	require.Greater(p.t, len(all), 60)
	return all
}

func resources(t *testing.T, config *rest.Config) map[schema.GroupVersionResource]metav1.APIResource {
	t.Helper()
	d, err := discovery.NewDiscoveryClientForConfig(config)
	require.NoError(t, err)
	_, lists, err := d.ServerGroupsAndResources()
	require.NoError(t, err)
	all := map[schema.GroupVersionResource]metav1.APIResource{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		require.NoError(t, err)
		for _, r := range list.APIResources {
			all[gv.WithResource(r.Name)] = r
		}
	}
	return all
}

func (p *pair) try(k *subject) {
	name := k.gvr.GroupResource().String() + " " + k.gvr.Version
	all := slices.Contains(whole, k.gvr.GroupResource().String())
	if !p.wanted(name) || !all && p.only.String() == "" || notCreated[k.gvr.GroupResource().String()] {
		return
	}
	few := func(list []exchange, most int) []exchange {
		if all {
			return list
		}
		return list[:min(len(list), most)]
	}
	p.run(name, k.creates())
	p.run(name, few(k.reads(), len(k.reads())-manyReads))
	p.run(name, k.writes())
	if k.can("watch") {
		p.runTogether(name, few(k.watches(), 5))
	}
	p.run(name, k.deletes())
	p.t.Logf("%s: %d requests so far", name, p.sent)
}

func customStubs() (all []stub) {
	for _, version := range []string{"v1", "v2"} {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"colour": "red"}}}
		o.SetName("boat-" + version)
		all = append(all, stub{
			schema.GroupVersionResource{Group: "harbour.example.com", Version: version, Resource: "boats"}, o,
		})
	}
	return all
}
