package static

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestPlan(t *testing.T) {
	of := func(uid types.UID) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace:   "ns",
				Name:        "p",
				UID:         uid,
				Annotations: map[string]string{hashAnnotation: string(uid)},
			},
		}
	}
	mirror := func(uid, node types.UID, change func(*corev1.Pod)) *corev1.Pod {
		m := mirrorOf(of(uid), "node", node)
		m.UID = "mirror"
		if change != nil {
			change(m)
		}
		return m
	}
	name := types.NamespacedName{Namespace: "ns", Name: "p"}
	now := metav1.Now()
	for what, c := range map[string]struct {
		node    types.UID
		pod     *corev1.Pod
		ending  bool
		mirror  *corev1.Pod
		creates bool
		deletes bool
	}{
		"none yet":                      {node: "n", pod: of("a"), creates: true},
		"no node yet":                   {pod: of("a")},
		"its mirror":                    {node: "n", pod: of("a"), mirror: mirror("a", "n", nil)},
		"its mirror, no node yet":       {pod: of("a"), mirror: mirror("a", "n", nil)},
		"of its former content":         {node: "n", pod: of("a"), mirror: mirror("b", "n", nil), deletes: true},
		"of a Node of that name before": {node: "n", pod: of("a"), mirror: mirror("a", "m", nil), deletes: true},
		"deleted by a user": {
			node: "n", pod: of("a"), mirror: mirror("a", "n", func(m *corev1.Pod) { m.DeletionTimestamp = &now }), deletes: true,
		},
		"of no pod": {node: "n", mirror: mirror("a", "n", nil), deletes: true},
		"made by a user": {
			node: "n", mirror: mirror("a", "n", func(m *corev1.Pod) { m.OwnerReferences = nil }), deletes: true,
		},
		"its pod ends": {node: "n", ending: true, mirror: mirror("a", "n", nil)},
		"its pod ends, deleted by a user": {
			node: "n", ending: true, mirror: mirror("a", "n", func(m *corev1.Pod) { m.DeletionTimestamp = &now }),
		},
		"its pod ends, there is no mirror": {node: "n", ending: true},
	} {
		s := State{
			Node:     c.node,
			NodeName: "node",
			Ending:   map[types.NamespacedName]bool{name: c.ending},
			Pods:     map[types.NamespacedName]*corev1.Pod{},
		}
		if c.pod != nil {
			s.Pods[name] = c.pod
		}
		if c.mirror != nil {
			s.Mirrors = []*corev1.Pod{c.mirror}
		}
		plan := Plan(s)
		if !c.creates && !c.deletes {
			require.Empty(t, plan, what)
			continue
		}
		require.Len(t, plan, 1, what)
		require.Equal(t, c.creates, plan[0].Create != nil, what)
		require.Equal(t, c.deletes, plan[0].Delete != nil, what)
		if c.creates {
			m, yes := plan[0].Create, true
			require.Equal(t, "a", m.Annotations[corev1.MirrorPodAnnotationKey])
			require.Equal(t, []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node", UID: "n", Controller: &yes}},
				m.OwnerReferences)
			require.Empty(t, m.UID)
		}
	}
}

// TestMirrors checks that whatever happens to mirrors in the API, each pod gets a mirror again and keeps running.
func TestMirrors(t *testing.T) {
	r := newRig(t)
	r.node = ""
	r.start()
	r.m.Synced()
	r.write("a.yaml", manifestOf("a", "one"))
	r.until("it runs", func() bool { return r.named("a-node") != nil })
	uid := r.pod("a-node").UID
	r.until("it has no mirror without a Node", func() bool {
		m, shown := r.mirrors[uid]
		return shown && m == nil && len(r.api) == 0
	})
	r.change(func() { r.node = "node-1" })
	r.m.NodeChanged()
	of := func() *corev1.Pod { return r.api[types.NamespacedName{Namespace: "default", Name: "a-node"}] }
	mirror := func() *corev1.Pod {
		r.mu.Lock()
		defer r.mu.Unlock()
		return of()
	}
	shown := func() bool { m := r.mirrors[uid]; return m != nil && of() != nil && m.UID == of().UID }
	r.until("it has one when the node is registered", shown)
	first := mirror().UID

	// A user deletes the mirror; the API keeps it until the agent confirms.
	deleted := mirror().DeepCopy()
	now := metav1.Now()
	deleted.DeletionTimestamp = &now
	r.m.Seen(deleted)
	r.until("it is replaced", func() bool { return shown() && of().UID != first })
	second := mirror().UID
	// A user deletes the mirror with grace period 0.
	var gone *corev1.Pod
	r.change(func() { gone = of(); delete(r.api, nameOf(gone)) })
	r.m.Gone(gone)
	r.until("it is made again", func() bool { return shown() && of().UID != second })
	// The Node object is replaced.
	third := mirror().UID
	r.change(func() { r.node = "node-2" })
	r.m.NodeChanged()
	r.until("it belongs to it", func() bool {
		return shown() && of().UID != third && of().OwnerReferences[0].UID == "node-2"
	})
	require.Empty(t, r.stops(), "the pod ran all the time")

	r.write("a.yaml", manifestOf("a", "two"))
	r.until("the changed pod replaces it", func() bool { return r.stopped[uid] })
	fourth := mirror().UID
	r.ends(uid)
	r.until("the next has another mirror", func() bool {
		p := r.named("a-node")
		return p != nil && of() != nil && of().UID != fourth && r.mirrors[p.UID] != nil
	})
	last := r.pod("a-node").UID
	require.NoError(t, os.Remove(filepath.Join(r.dir, "a.yaml")))
	r.until("it is stopped", func() bool { return r.stopped[last] })
	require.NotNil(t, mirror(), "its mirror is there until it has ended")
	r.ends(last)
	r.until("its mirror is gone", func() bool { return of() == nil })
}

func TestRefusedMirrors(t *testing.T) {
	r := newRig(t)
	r.refuse = errors.New("quota exceeded")
	r.start()
	r.write("a.yaml", manifestOf("a", "one"))
	r.m.Synced()
	r.until("an event", func() bool {
		return slices.Contains(r.events, "FailedMirrorPod: mirror of static pod default/a-node: quota exceeded")
	})
	require.NotNil(t, r.pod("a-node"))
	r.change(func() { r.refuse = nil })
	r.until("it is made", func() bool { return len(r.api) == 1 })
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b-node"}}
	r.change(func() { r.api[nameOf(other)] = other })
	r.write("b.yaml", manifestOf("b", "one"))
	r.until("a pod of that name is no mirror", func() bool {
		return slices.Contains(r.events,
			"FailedMirrorPod: mirror of static pod default/b-node: another pod has the mirror's name: delete that "+
				"pod, or rename the static pod")
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Equal(t, other, r.api[nameOf(other)])
}

func TestMirrorOfAPodThatComesBack(t *testing.T) {
	r := newRig(t)
	r.start()
	r.m.Synced()
	r.write("a.yaml", manifestOf("a", "one"))
	r.until("it runs", func() bool { return r.named("a-node") != nil })
	uid := r.pod("a-node").UID
	r.until("it has its mirror", func() bool { return r.mirrors[uid] != nil })
	answer := make(chan struct{})
	r.change(func() { r.block = answer })
	r.write("b.yaml", manifestOf("b", "one"))
	r.until("its mirror is being made", func() bool { return r.blocked })
	require.NoError(t, os.Remove(filepath.Join(r.dir, "a.yaml")))
	r.until("it is stopped", func() bool { return r.stopped[uid] })
	r.write("a.yaml", manifestOf("a", "one"))
	r.write("c.yaml", manifestOf("c", "one"))
	r.until("the folder was read", func() bool { return r.named("c-node") != nil })
	r.ends(uid)
	r.until("it runs again", func() bool { return r.named("a-node") != nil })
	close(answer)
	r.until("it has its mirror again", func() bool { return r.mirrors[uid] != nil })
}

// TestUIDs checks that the UID depends on the manifest's content, the file and the node, and on nothing else.
func TestUIDs(t *testing.T) {
	uid := func(text, file, node string) types.UID {
		p, err := decode([]byte(text), func(p *corev1.Pod) error { return complete(p, file, node) })
		require.NoError(t, err)
		require.Equal(t, string(p.UID), p.Annotations["kubernetes.io/config.hash"])
		require.Equal(t, "file", p.Annotations["kubernetes.io/config.source"])
		_, err = time.Parse(time.RFC3339Nano, p.Annotations["kubernetes.io/config.seen"])
		require.NoError(t, err)
		require.Equal(t, []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}},
			p.Spec.Tolerations)
		return p.UID
	}
	text := manifestOf("a", "one")
	same := uid(text, "/f", "node")
	require.Len(t, string(same), 32)
	require.Equal(t, same, uid("# a comment\n"+text, "/f", "node"))
	others := map[types.UID]bool{
		uid(manifestOf("a", "two"), "/f", "node"): true,
		uid(text, "/g", "node"):                   true,
		uid(text, "/f", "other"):                  true,
	}
	require.Len(t, others, 3)
	require.NotContains(t, slices.Collect(maps.Keys(others)), same)
}
