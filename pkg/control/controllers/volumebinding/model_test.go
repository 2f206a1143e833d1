package volumebinding

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	helpers "k8s.io/component-helpers/storage/volume"
	"pgregory.net/rapid"

	"github.com/coracle-dev/coracle/apis/storage"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// world is a cluster's storage with the API server's rules: updates need the newest version, and finalizers delay
// deletion.
type world struct {
	claims      map[string]*corev1.PersistentVolumeClaim
	volumes     map[string]*corev1.PersistentVolume
	directories map[string]bool
	pods        []*corev1.Pod
	classes     map[string]*storagev1.StorageClass
	nodes       []*corev1.Node
	sizes       map[string]int64 // as the nodes know them
	full        bool             // volumes cannot grow
	version     int
	made        int
}

func (w *world) next() string { w.version++; return fmt.Sprint(w.version) }

// planned is a step and its object. Other writes may happen before it is applied.
type planned struct {
	step Step
	of   string
}

func (w *world) planClaim(name string) Step {
	c := w.claims[name]
	s := ClaimState{
		Claim:  c,
		Volume: w.volumes[c.Spec.VolumeName],
		Class:  w.classes[helpers.GetPersistentVolumeClaimClass(c)],
		Nodes:  w.nodes,
	}
	for _, name := range slices.Sorted(maps.Keys(w.volumes)) {
		s.Candidates = append(s.Candidates, w.volumes[name])
	}
	for _, p := range w.pods {
		if slices.Contains(podstate.ClaimNames(p), name) {
			s.Pods = append(s.Pods, p)
		}
	}
	return PlanClaim(s, time.Unix(1, 0))
}

func (w *world) planVolume(name string) Step {
	v := w.volumes[name]
	var c *corev1.PersistentVolumeClaim
	if v.Spec.ClaimRef != nil {
		c = w.claims[v.Spec.ClaimRef.Name]
	}
	return PlanVolume(v, c)
}

// apply carries out a step unless its object was written since it was planned.
func (w *world) apply(s Step) {
	switch s.Op {
	case Withdrawn, Resized:
		if w.grow(s.Volume.Name, s.Volume.Spec.Capacity.Storage().Value()) {
			if s.Op == Withdrawn {
				w.updateVolume(s.Volume)
				return
			}
		} else if s.Op == Resized || !w.grow(s.Volume.Name, s.Claim.Status.Capacity.Storage().Value()) {
			return
		}
		s.Op = UpdateClaimStatus
		w.apply(s)
	case UpdateClaim, UpdateClaimStatus:
		if have := w.claims[s.Claim.Name]; have != nil && have.UID == s.Claim.UID &&
			have.ResourceVersion == s.Claim.ResourceVersion {
			next := s.Claim.DeepCopy()
			next.ResourceVersion = w.next()
			w.claims[next.Name] = next
			if next.DeletionTimestamp != nil && len(next.Finalizers) == 0 {
				delete(w.claims, next.Name)
			}
		}
	case CreateVolume:
		if w.volumes[s.Volume.Name] == nil {
			v := s.Volume.DeepCopy()
			v.UID, v.ResourceVersion = types.UID("uid-"+v.Name), w.next()
			v.Finalizers = append(v.Finalizers, volumeProtection)
			w.volumes[v.Name] = v
			w.sizes[v.Name] = v.Spec.Capacity.Storage().Value()
		}
	case UpdateVolume, UpdateStatus:
		w.updateVolume(s.Volume)
	case DeleteVolume:
		if v := w.volumes[s.Volume.Name]; v != nil {
			next := v.DeepCopy()
			next.DeletionTimestamp = &metav1.Time{}
			w.updateVolume(next)
		}
	case RemoveDirectory:
		if v := w.volumes[s.Volume.Name]; v != nil && v.ResourceVersion == s.Volume.ResourceVersion {
			delete(w.directories, v.Name)
			next := v.DeepCopy()
			next.Finalizers = without(next.Finalizers, storage.Finalizer)
			w.updateVolume(next)
		}
	case Nothing:
	}
}

func (w *world) grow(volume string, size int64) bool {
	if size < w.sizes[volume] || size > w.sizes[volume] && w.full {
		return false
	}
	w.sizes[volume] = size
	return true
}

func (w *world) updateVolume(next *corev1.PersistentVolume) {
	if have := w.volumes[next.Name]; have == nil || have.ResourceVersion != next.ResourceVersion {
		return
	}
	next = next.DeepCopy()
	next.ResourceVersion = w.next()
	w.volumes[next.Name] = next
	if next.DeletionTimestamp != nil && len(next.Finalizers) == 0 {
		delete(w.volumes, next.Name)
	}
}

// TestModel: whatever users, pods and interrupted reconcilers do in any order, a claim is bound once, a volume has
// one claim, and no directory exists without its volume. In the end nothing is left to do.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			claims: map[string]*corev1.PersistentVolumeClaim{}, volumes: map[string]*corev1.PersistentVolume{},
			directories: map[string]bool{}, sizes: map[string]int64{},
			nodes:   []*corev1.Node{node("a"), node("b")},
			classes: map[string]*storagev1.StorageClass{"local": class(storage.Provisioner, storagev1.VolumeBindingImmediate)},
		}
		if rapid.Bool().Draw(t, "wait") {
			w.classes["local"] = class(storage.Provisioner, storagev1.VolumeBindingWaitForFirstConsumer)
		}
		names := []string{"x", "y", "z"}
		bound := map[types.UID]string{} // by claim, the volume that it was bound to
		var underWay []planned
		check := func() {
			taken := map[string]types.UID{}
			for _, c := range w.claims {
				if c.Status.Phase == corev1.ClaimBound {
					v := c.Spec.VolumeName
					if was, ok := bound[c.UID]; ok {
						require.Equal(t, was, v, "a claim is bound once")
					}
					bound[c.UID] = v
					require.Empty(t, taken[v], "two claims have one volume")
					taken[v] = c.UID
					require.NotNil(t, w.volumes[v], "a bound claim's volume is there")
					require.Equal(t, c.UID, w.volumes[v].Spec.ClaimRef.UID)
				}
			}
			for d := range w.directories {
				require.NotNil(t, w.volumes[d], "directory %s is forgotten", d)
			}
		}
		step := func(name string, plan func(string) Step) {
			s := plan(name)
			if rapid.Bool().Draw(t, "interrupted") {
				underWay = append(underWay, planned{s, name})
			} else {
				w.apply(s)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { check() },
			"claim": func(t *rapid.T) {
				name := rapid.SampledFrom(names).Draw(t, "name")
				if w.claims[name] == nil {
					w.made++
					c := claim(name)
					c.UID, c.ResourceVersion = types.UID(fmt.Sprint(name, w.made)), w.next()
					w.claims[name] = c
				}
			},
			"volume": func(t *rapid.T) {
				if len(w.volumes) < 6 {
					w.made++
					v := volume(fmt.Sprint("v", w.made), rapid.SampledFrom([]string{"1Mi", "1Gi", "2Gi"}).Draw(t, "size"))
					v.ResourceVersion = w.next()
					if rapid.Bool().Draw(t, "named") {
						v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: rapid.SampledFrom(names).Draw(t, "for")}
					}
					w.volumes[v.Name] = v
				}
			},
			"pod": func(t *rapid.T) {
				name := rapid.SampledFrom(names).Draw(t, "name")
				c := w.claims[name]
				if c == nil || c.DeletionTimestamp != nil {
					return
				}
				if c.Spec.VolumeName == "" {
					s := updateClaim(c, func(c *corev1.PersistentVolumeClaim) {
						metav1.SetMetaDataAnnotation(&c.ObjectMeta, helpers.AnnSelectedNode,
							rapid.SampledFrom([]string{"a", "b", "gone"}).Draw(t, "node"))
					})
					w.apply(s)
					return
				}
				if c.Status.Phase == corev1.ClaimBound && len(w.pods) < 4 {
					p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "a", Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}}}
					w.pods = append(w.pods, p)
					if v := w.volumes[c.Spec.VolumeName]; storage.Ours(v) {
						w.directories[v.Name] = true
					}
				}
			},
			"pod ends": func(*rapid.T) {
				if len(w.pods) > 0 {
					w.pods = w.pods[1:]
				}
			},
			"resize claim": func(t *rapid.T) {
				c := w.claims[rapid.SampledFrom(names).Draw(t, "name")]
				to := resource.MustParse(rapid.SampledFrom([]string{"1Gi", "2Gi", "3Gi", "4Gi"}).Draw(t, "to"))
				if c == nil || c.Status.Phase != corev1.ClaimBound || to.Cmp(*c.Status.Capacity.Storage()) < 0 {
					return
				}
				w.apply(updateClaim(c, func(c *corev1.PersistentVolumeClaim) {
					c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: to}
				}))
			},
			"room": func(t *rapid.T) { w.full = !w.full },
			"delete claim": func(t *rapid.T) {
				if c := w.claims[rapid.SampledFrom(names).Draw(t, "name")]; c != nil {
					next := c.DeepCopy()
					next.DeletionTimestamp, next.ResourceVersion = &metav1.Time{}, w.next()
					w.claims[c.Name] = next
				}
			},
			"plan claim": func(t *rapid.T) {
				if len(w.claims) > 0 {
					step(rapid.SampledFrom(slices.Sorted(maps.Keys(w.claims))).Draw(t, "of"), w.planClaim)
				}
			},
			"plan volume": func(t *rapid.T) {
				if len(w.volumes) > 0 {
					step(rapid.SampledFrom(slices.Sorted(maps.Keys(w.volumes))).Draw(t, "of"), w.planVolume)
				}
			},
			"finish": func(t *rapid.T) {
				if len(underWay) > 0 {
					i := rapid.IntRange(0, len(underWay)-1).Draw(t, "which")
					w.apply(underWay[i].step)
					underWay = slices.Delete(underWay, i, i+1)
				}
			},
		})
		// Without further changes, it settles.
		ours := func(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
			if v := w.volumes[c.Spec.VolumeName]; c.Status.Phase == corev1.ClaimBound && c.DeletionTimestamp == nil &&
				v != nil && storage.Ours(v) {
				return v
			}
			return nil
		}
		settle := func() {
			for range 200 {
				busy := false
				for _, name := range slices.Sorted(maps.Keys(w.claims)) {
					s := w.planClaim(name)
					busy = busy || s.Op != Nothing
					w.apply(s)
				}
				for _, name := range slices.SortedFunc(maps.Keys(w.volumes), cmp.Compare[string]) {
					s := w.planVolume(name)
					busy = busy || s.Op != Nothing
					w.apply(s)
				}
				check()
				if busy {
					continue
				}
				for _, c := range w.claims {
					if c.Status.Phase == corev1.ClaimBound && c.DeletionTimestamp == nil {
						used := slices.ContainsFunc(w.pods, func(p *corev1.Pod) bool {
							return slices.Contains(podstate.ClaimNames(p), c.Name)
						})
						require.Equal(t, []string{fmt.Sprint(!used)}, unused(c))
					}
					if v := ours(c); v != nil {
						require.Equal(t, v.Spec.Capacity.Storage().String(), c.Status.Capacity.Storage().String())
						require.LessOrEqual(t, w.sizes[v.Name], v.Spec.Capacity.Storage().Value(), "pods may use it")
					}
				}
				return
			}
			t.Fatalf("it does not settle")
		}
		w.full = false
		settle()
		// An expansion that does not fit is cancelled when the request is reduced.
		w.full = true
		for _, name := range slices.Sorted(maps.Keys(w.claims)) {
			if ours(w.claims[name]) == nil {
				continue
			}
			for _, asked := range []corev1.ResourceList{
				{corev1.ResourceStorage: resource.MustParse("8Gi")}, w.claims[name].Status.Capacity,
			} {
				w.apply(updateClaim(w.claims[name], func(c *corev1.PersistentVolumeClaim) {
					c.Spec.Resources.Requests = asked.DeepCopy()
				}))
				w.apply(w.planClaim(name))
			}
		}
		settle()
	})
}

// unused returns the statuses of a claim's Unused conditions, in lower case.
func unused(c *corev1.PersistentVolumeClaim) (out []string) {
	for _, condition := range c.Status.Conditions {
		if condition.Type == corev1.PersistentVolumeClaimUnused {
			out = append(out, strings.ToLower(string(condition.Status)))
		}
	}
	return out
}
