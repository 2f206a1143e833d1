package kontrol_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"pgregory.net/rapid"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine"
	reconciler "github.com/coracle-dev/coracle/pkg/systems/kontrol/controller"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/object"
	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
	"github.com/coracle-dev/coracle/test/wire"
)

// modelChecks is how many interleavings TestKontrolNeverLies tries without -rapid.checks.
const modelChecks = "10"

// past is all object versions that ever existed, as seen by watches that are never cut.
type past struct {
	mu      sync.Mutex
	objects map[string][]corev1.ConfigMap // of the target, by name
	applied []kontrol.AppliedState
	current []kontrol.CurrentState
	said    []kontrol.Resource
	desired map[string]string // by Resource's UID and generation
}

func record[T any, P interface {
	*T
	ctrl.Object
}](c *cluster, l ctrl.ObjectList, note func(T)) {
	w, err := c.Watch(c.Ctx, l)
	require.NoError(c.T, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range w.ResultChan() {
			if o, ok := e.Object.(P); ok && e.Type != "DELETED" {
				note(*o)
			}
		}
	}()
	c.T.Cleanup(func() { w.Stop(); <-ended })
}

func (p *past) noted(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func generationOf(r *kontrol.Resource) string { return fmt.Sprint(r.UID, "/", r.Generation) }

// had reports whether the target ever had an object of the name for which ok returns true.
func (p *past) had(name string, ok func(*corev1.ConfigMap) bool) bool {
	for i := range p.objects[name] {
		if ok(&p.objects[name][i]) {
			return true
		}
	}
	return false
}

// lies returns the reports in statuses and records that were never true.
func (p *past) lies(of map[string]bool) (list []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	same := func(m *corev1.ConfigMap, recorded []byte) bool {
		return string(object.JSON(map[string]any{"x": object.Parse(recorded)["data"]})) == string(object.JSON(map[string]any{
			"x": texts(m.Data),
		}))
	}
	for _, a := range p.applied {
		s := a.State
		if of[s.Resource] && s.Generation > 0 && !p.had(s.Target.Name, func(m *corev1.ConfigMap) bool {
			return m.Annotations[kontrol.AnnotationGeneration] == fmt.Sprint(s.Generation) &&
				m.Annotations[kontrol.AnnotationID] == fmt.Sprint(s.ResourceID) && same(m, s.Object.Raw)
		}) {
			list = append(list, fmt.Sprintf("applied: %+v", s))
		}
	}
	for _, c := range p.current {
		s := c.State
		if of[s.Resource] && s.Present && !p.had(s.Target.Name, func(m *corev1.ConfigMap) bool {
			return string(m.UID) == s.UID && m.ResourceVersion == s.ResourceVersion && same(m, s.Object.Raw)
		}) {
			list = append(list, fmt.Sprintf("current: %+v", s))
		}
	}
	for i := range p.said {
		r := &p.said[i]
		if of[r.Name] && r.Status.State == kontrol.StateSynced && r.Status.ObservedGeneration == r.Generation &&
			!p.had(kontrol.TargetOf(r).Name, func(m *corev1.ConfigMap) bool {
				return m.Annotations[kontrol.AnnotationGeneration] == fmt.Sprint(r.Generation) &&
					m.Annotations[kontrol.AnnotationID] == fmt.Sprint(r.Status.ID) && m.Data["a"] == p.desired[generationOf(r)]
			}) {
			list = append(list, fmt.Sprintf("in sync: generation %d of %s: %+v", r.Generation, r.Name, r.Status))
		}
	}
	return list
}

func texts(m map[string]string) map[string]any {
	out := map[string]any{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

// model is a hub whose Kontrol is killed and restarted, and a cluster behind a wire.
type model struct {
	*cluster
	*past
	target *cluster
	wire   *wire.Wire
	stop   func()
}

func newModel(t *testing.T) *model {
	m := &model{
		cluster: start(t, controlplane.Options{Log: slog.LevelError, Bare: true}),
		past:    &past{objects: map[string][]corev1.ConfigMap{}, desired: map[string]string{}},
		target:  start(t, controlplane.Options{Log: slog.LevelError, HTTP: true, Bare: true}),
	}
	u, err := url.Parse(m.target.REST("admin", user.SystemPrivilegedGroup).Host)
	require.NoError(t, err)
	m.wire = wire.New(t, u.Host)
	record(m.target, &corev1.ConfigMapList{}, func(o corev1.ConfigMap) {
		m.noted(func() { m.objects[o.Name] = append(m.objects[o.Name], o) })
	})
	record(m.cluster, &kontrol.AppliedStateList{}, func(o kontrol.AppliedState) {
		m.noted(func() { m.applied = append(m.applied, o) })
	})
	record(m.cluster, &kontrol.CurrentStateList{}, func(o kontrol.CurrentState) {
		m.noted(func() { m.current = append(m.current, o) })
	})
	record(m.cluster, &kontrol.ResourceList{}, func(o kontrol.Resource) { m.noted(func() { m.said = append(m.said, o) }) })
	m.Make(kubeconfigSecret(t, "there", m.target, func(cfg *clientcmdapi.Config) {
		cfg.Clusters["x"].Server = "https://" + m.wire.Address()
	}),
		&kontrol.Cluster{
			ObjectMeta: metav1.ObjectMeta{Name: "there"},
			Spec:       kontrol.ClusterSpec{KubeconfigSecret: &kontrol.SecretReference{Namespace: "default", Name: "there"}},
		})
	m.run()
	t.Cleanup(func() { m.stop() })
	return m
}

// run starts Kontrol; stop ends it at any point of its work.
func (m *model) run() {
	ctx, cancel := context.WithCancel(m.Ctx)
	ended := make(chan error, 1)
	list := reconciler.New(m.Engine.As("system:serviceaccount:kube-system:"+reconciler.Account), "v1", nil, nil)
	go func() {
		ended <- engine.Run(ctx, engine.Config{ClientFor: m.Engine.As, Log: slog.New(slog.DiscardHandler)}, list, func() {})
	}()
	m.stop = func() {
		cancel()
		require.NoError(m.T, <-ended)
	}
}

// user accepts the error of a user's change to an object that may not exist.
func (m *model) user(err error) {
	m.T.Helper()
	if !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) {
		require.NoError(m.T, err)
	}
}

// wants creates or edits a Resource, and records the desired value.
func (m *model) wants(name string, mode kontrol.Mode, value string) {
	m.T.Helper()
	r := managed(name, "there", configMapTemplate(name, value))
	r.Spec.Mode = mode
	m.mu.Lock() // before Kontrol can report it in sync
	defer m.mu.Unlock()
	err := m.Create(m.Ctx, r)
	if apierrors.IsAlreadyExists(err) {
		r = &kontrol.Resource{ObjectMeta: metav1.ObjectMeta{Name: name}}
		err = m.Patch(m.Ctx, r,
			ctrl.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"template":{"data":{"a":%q}}}}`, value)))
	}
	if err == nil {
		m.desired[generationOf(r)] = value
	}
	m.user(err)
}

func (m *model) drifts(name, patch string) {
	m.T.Helper()
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	m.user(m.target.Patch(m.Ctx, o, ctrl.RawPatch(types.MergePatchType, []byte(patch)), ctrl.FieldOwner("somebody")))
}

func (m *model) suspend(yes bool) {
	m.T.Helper()
	m.user(m.Patch(m.Ctx, &kontrol.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "there"}},
		ctrl.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"suspend":%t}}`, yes))))
}

// TestKontrolNeverLies runs real Kontrol with a real cluster behind a connection that is cut. Its states must
// converge to the desired ones from any interleaving of edits, deletions, drift, lost labels, removed objects,
// cuts, silence, suspension and kills. Every report of an applied, current or synced object must have been true at
// some time: the cluster had that very object.
func TestKontrolNeverLies(t *testing.T) {
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == "rapid.checks" })
	if checks := flag.Lookup("rapid.checks"); !set {
		was := checks.Value.String()
		require.NoError(t, checks.Value.Set(modelChecks))
		defer func() { _ = checks.Value.Set(was) }()
	}
	m := newModel(t)
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		corrected, reported := fmt.Sprintf("corrected-%d", run), fmt.Sprintf("reported-%d", run)
		modes := map[string]kontrol.Mode{
			corrected: rapid.SampledFrom([]kontrol.Mode{kontrol.ModeCorrect, kontrol.ModeEnforce}).Draw(rt, "mode"),
			reported:  kontrol.ModeReport,
		}
		last, clear := map[string]string{}, true
		wants := func(name, value string) {
			m.wants(name, modes[name], value)
			last[name] = value
		}
		wants(corrected, "0")
		wants(reported, "0")
		for i := range rapid.IntRange(1, 20).Draw(rt, "steps") {
			name := rapid.SampledFrom([]string{corrected, corrected, reported}).Draw(rt, "of")
			switch rapid.SampledFrom([]string{
				"edit", "edit", "drift", "add", "unlabel", "remove", "delete", "cut", "silence", "mend", "mend", "kill", "suspend",
				"resume", "await", "await",
			}).Draw(rt, "step") {
			case "edit":
				wants(name, fmt.Sprint(i))
			case "drift":
				m.drifts(name, fmt.Sprintf(`{"data":{"a":"drift %d"}}`, i))
			case "add":
				m.drifts(name, fmt.Sprintf(`{"data":{"added":"%d"}}`, i))
			case "unlabel":
				m.drifts(name, fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, kontrol.LabelID))
			case "remove":
				m.user(m.target.Delete(m.Ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}))
			case "delete":
				m.user(m.Delete(m.Ctx, &kontrol.Resource{ObjectMeta: metav1.ObjectMeta{Name: corrected}}))
			case "cut":
				m.wire.Cut()
				clear = false
			case "silence":
				m.wire.Silence()
				clear = false
			case "mend":
				m.wire.Mend()
				clear = true
			case "kill":
				m.stop()
				m.run()
			case "suspend":
				m.suspend(true)
				clear = false
			case "resume":
				m.suspend(false)
			case "await":
				if clear {
					m.suspend(false)
					m.converges(rt, corrected, last[corrected], modes[corrected])
				}
			}
		}
		m.wire.Mend()
		m.suspend(false)
		m.converges(rt, corrected, last[corrected], modes[corrected])
		m.tells(rt, reported, last[reported])
		// The test may record the target's object after Kontrol's report about it.
		if of := map[string]bool{corrected: true, reported: true}; !assert.Eventually(t, func() bool {
			return len(m.lies(of)) == 0
		}, time.Minute, time.Millisecond) {
			rt.Fatalf("%s", m.lies(of))
		}
	})
}

// converges waits until a Resource is in sync and its object is as desired. It creates a deleted Resource again.
func (m *model) converges(rt *rapid.T, name, want string, mode kontrol.Mode) {
	m.follows(rt, name, func(r *kontrol.Resource, o *corev1.ConfigMap) bool {
		if r == nil {
			m.wants(name, mode, want)
			return false
		}
		_, added := o.Data["added"]
		return r.DeletionTimestamp == nil && r.Status.State == kontrol.StateSynced && o.Data["a"] == want &&
			o.Labels[kontrol.LabelID] != "" && !(added && mode == kontrol.ModeEnforce)
	})
}

// tells waits until a Resource with mode Report reports correctly whether its object is as desired.
func (m *model) tells(rt *rapid.T, name, want string) {
	m.follows(rt, name, func(r *kontrol.Resource, o *corev1.ConfigMap) bool {
		if o.Data["a"] == want && o.Labels[kontrol.LabelID] != "" {
			return r.Status.State == kontrol.StateSynced
		}
		return r.Status.State == kontrol.StateDrifted || r.Status.State == kontrol.StateConflict
	})
}

// follows waits until ok returns true for a Resource whose status is current (nil if it is deleted) and the
// target's object (empty if it is deleted).
func (m *model) follows(rt *rapid.T, name string, ok func(*kontrol.Resource, *corev1.ConfigMap) bool) {
	ctx, cancel := context.WithTimeout(m.Ctx, controlplane.Patience)
	defer cancel()
	resources, err := m.Watch(ctx, &kontrol.ResourceList{}, ctrl.MatchingFields{"metadata.name": name})
	require.NoError(m.T, err)
	defer resources.Stop()
	objects, err := m.target.Watch(ctx, &corev1.ConfigMapList{}, ctrl.InNamespace("default"),
		ctrl.MatchingFields{"metadata.name": name})
	require.NoError(m.T, err)
	defer objects.Stop()
	for {
		r := &kontrol.Resource{}
		if err := m.Get(m.Ctx, ctrl.ObjectKey{Name: name}, r); apierrors.IsNotFound(err) {
			r = nil
		} else {
			require.NoError(m.T, err)
		}
		o, _ := m.target.configMap(name)
		if (r == nil || r.Status.ObservedGeneration == r.Generation) && ok(r, o) {
			return
		}
		select {
		case <-resources.ResultChan():
		case <-objects.ResultChan():
		}
		if ctx.Err() != nil {
			rt.Fatalf("%s is not as it should be: %+v; on the cluster: %+v", name, r, o)
		}
	}
}
