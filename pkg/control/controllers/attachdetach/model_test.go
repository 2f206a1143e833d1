package attachdetach

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/coracle-dev/coracle/pkg/engine/nodestate"
)

// world has two nodes, their pods, and a driver that attaches and detaches at its own pace.
type world struct {
	t       *rapid.T
	now     time.Time
	volumes map[string]*corev1.PersistentVolume
	nodes   map[string]*corev1.Node
	// wanted are the volumes of each node's pods. mounted are the volumes that the node's agent reports in use.
	wanted, mounted map[string]map[string]bool
	attachments     map[string]*storagev1.VolumeAttachment // by name
	since           map[string]time.Time
}

func newWorld(t *rapid.T) *world {
	w := &world{
		t: t, now: now, volumes: map[string]*corev1.PersistentVolume{}, nodes: map[string]*corev1.Node{},
		wanted:  map[string]map[string]bool{},
		mounted: map[string]map[string]bool{}, attachments: map[string]*storagev1.VolumeAttachment{},
		since: map[string]time.Time{},
	}
	for i, mode := range []corev1.PersistentVolumeAccessMode{
		corev1.ReadWriteOnce, corev1.ReadWriteMany, corev1.ReadWriteOncePod,
	} {
		v := volume(fmt.Sprint("v", i), mode)
		w.volumes[v.Name] = v
	}
	for _, name := range []string{"a", "b"} {
		w.nodes[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		w.wanted[name], w.mounted[name] = map[string]bool{}, map[string]bool{}
		w.setReady(name, true)
	}
	return w
}

func (w *world) setReady(node string, ready bool) {
	n := w.nodes[node].DeepCopy()
	n.Status.Conditions = nil
	if ready {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	}
	w.nodes[node] = n
}

func (w *world) observe(node string) Observed {
	o := Observed{
		Name: node, Node: w.nodes[node].DeepCopy(), Wanted: map[string]*corev1.PersistentVolume{},
		Elsewhere: map[string][]string{},
		Volumes:   map[string]*corev1.PersistentVolume{}, Since: w.since,
	}
	for name := range w.mounted[node] {
		o.Node.Status.VolumesInUse = append(o.Node.Status.VolumesInUse, uniqueName(w.volumes[name]))
	}
	for name := range w.wanted[node] {
		o.Wanted[name] = w.volumes[name]
	}
	for _, a := range w.attachments {
		name := source(a)
		if a.Spec.NodeName == node {
			o.Attachments, o.Volumes[name] = append(o.Attachments, a), w.volumes[name]
		} else if o.Wanted[name] != nil {
			o.Elsewhere[name] = append(o.Elsewhere[name], a.Spec.NodeName)
		}
	}
	return o
}

// reconcile carries out a node's plan. It stops after the given number of writes, as if the process were killed.
func (w *world) reconcile(node string, writes int) {
	d := Plan(w.observe(node), w.now)
	for _, name := range d.Unused {
		if _, seen := w.since[name]; !seen {
			w.since[name] = w.now
		}
	}
	for _, a := range d.Detach {
		if writes--; writes < 0 {
			return
		}
		w.mayDetach(a)
		next := a.DeepCopy()
		next.DeletionTimestamp = &metav1.Time{Time: w.now}
		w.attachments[a.Name] = next
	}
	for _, v := range d.Attach {
		if writes--; writes < 0 {
			return
		}
		name := attachmentName("d", v.Spec.CSI.VolumeHandle, node)
		if w.attachments[name] != nil {
			w.t.Fatalf("a second attachment of %s to %s", v.Name, node)
		}
		w.attachments[name] = &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: storagev1.VolumeAttachmentSpec{
				NodeName: node,
				Attacher: "d",
				Source:   storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.Name},
			}}
		delete(w.since, name)
	}
}

// mayDetach checks that no volume in use is detached, unless its node has been lost for long enough.
func (w *world) mayDetach(a *storagev1.VolumeAttachment) {
	node, name := a.Spec.NodeName, source(a)
	if w.wanted[node][name] {
		w.t.Fatalf("%s is detached from %s, whose pods want it", name, node)
	}
	if !w.mounted[node][name] {
		return
	}
	if nodestate.Ready(w.nodes[node]) {
		w.t.Fatalf("%s is detached from %s, which is healthy and has it mounted", name, node)
	}
	if first, seen := w.since[a.Name]; !seen || w.now.Sub(first) < ForceAfter {
		w.t.Fatalf("%s is detached from %s, which has been lost for a short time only", name, node)
	}
}

func (w *world) check() {
	for name, v := range w.volumes {
		if shareable(v) {
			continue
		}
		on := map[string]bool{}
		for _, a := range w.attachments {
			if source(a) == name {
				on[a.Spec.NodeName] = true
			}
		}
		if len(on) > 1 {
			w.t.Fatalf("%s is attached to several nodes", name)
		}
	}
}

// TestModel: whatever pods, agents, drivers and nodes do, and wherever the reconciler is killed, a single-node
// volume is never attached to two nodes, and no volume in use is detached. When all actors are idle, exactly the
// wanted volumes are attached, and a second plan is empty.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		node := rapid.SampledFrom([]string{"a", "b"})
		name := rapid.SampledFrom([]string{"v0", "v1", "v2"})
		t.Repeat(map[string]func(*rapid.T){
			"pod comes": func(t *rapid.T) { w.wanted[node.Draw(t, "node")][name.Draw(t, "volume")] = true },
			"pod goes":  func(t *rapid.T) { delete(w.wanted[node.Draw(t, "node")], name.Draw(t, "volume")) },
			"agent mounts": func(t *rapid.T) {
				n, v := node.Draw(t, "node"), name.Draw(t, "volume")
				a := w.attachments[attachmentName("d", w.volumes[v].Spec.CSI.VolumeHandle, n)]
				if w.wanted[n][v] && a != nil && a.Status.Attached && a.DeletionTimestamp == nil &&
					nodestate.Ready(w.nodes[n]) {
					w.mounted[n][v] = true
				}
			},
			"agent unmounts": func(t *rapid.T) {
				if n, v := node.Draw(t, "node"), name.Draw(t, "volume"); !w.wanted[n][v] && nodestate.Ready(w.nodes[n]) {
					delete(w.mounted[n], v)
				}
			},
			"driver": func(t *rapid.T) { w.drive(node.Draw(t, "node"), name.Draw(t, "volume")) },
			"node":   func(t *rapid.T) { w.setReady(node.Draw(t, "node"), rapid.Bool().Draw(t, "ready")) },
			"time": func(t *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 400).Draw(t, "seconds")) * time.Second)
			},
			"reconcile": func(t *rapid.T) { w.reconcile(node.Draw(t, "node"), rapid.IntRange(0, 4).Draw(t, "writes")) },
			"":          func(*rapid.T) { w.check() },
		})
		w.settle()
	})
}

func (w *world) drive(node, name string) {
	key := attachmentName("d", w.volumes[name].Spec.CSI.VolumeHandle, node)
	a := w.attachments[key]
	switch {
	case a == nil:
	case a.DeletionTimestamp != nil:
		delete(w.attachments, key)
		delete(w.since, key)
		delete(w.mounted[node], name) // the node was lost, so its mount is gone
	default:
		next := a.DeepCopy()
		next.Status.Attached = true
		w.attachments[key] = next
	}
}

func (w *world) settle() {
	for node := range w.nodes {
		w.setReady(node, true)
	}
	for range 6 {
		for node := range w.nodes {
			for name := range w.mounted[node] {
				if !w.wanted[node][name] {
					delete(w.mounted[node], name)
				}
			}
			w.reconcile(node, 100)
			w.check()
			for name := range w.volumes {
				w.drive(node, name)
			}
		}
	}
	for node := range w.nodes {
		d := Plan(w.observe(node), w.now)
		if len(d.Attach)+len(d.Detach) > 0 {
			w.t.Fatalf("the plan of %s is not empty: %+v", node, d)
		}
		if len(d.Reported)+len(d.Blocked) != len(w.wanted[node]) {
			w.t.Fatalf("%s wants %v, has %v, and waits for %v", node, w.wanted[node], d.Reported, d.Blocked)
		}
		for _, v := range d.Blocked {
			other := map[string]string{"a": "b", "b": "a"}[node]
			if !w.wanted[other][v.Name] {
				w.t.Fatalf("%s waits for %s, which nobody else wants", node, v.Name)
			}
		}
	}
}
