// Package history keeps the revisions of a workload's pod template as ControllerRevisions, in upstream's format, so that kubectl rollout
// history and undo work and an upstream controller can take over.
//
// It may import engine. Its invariant: Plan is pure; it never deletes a revision that a pod or the status refers to.
package history

import (
	"bytes"
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// HashLabel is the label of a StatefulSet's revisions with the hash of their data.
const HashLabel = "controller.kubernetes.io/hash"

// Data is the data of a revision: a strategic merge patch that replaces the pod template, byte for byte as upstream writes it.
func Data(t *corev1.PodTemplateSpec) ([]byte, error) {
	raw, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	var template map[string]any
	if err := json.Unmarshal(raw, &template); err != nil {
		return nil, err
	}
	template["$patch"] = "replace"
	return json.Marshal(map[string]any{"spec": map[string]any{"template": template}})
}

// Template is the pod template that a revision records.
func Template(r *appsv1.ControllerRevision) (*corev1.PodTemplateSpec, error) {
	var data struct {
		Spec struct {
			Template *corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(r.Data.Raw, &data); err != nil {
		return nil, fmt.Errorf("revision %s: %w", r.Name, err)
	}
	if data.Spec.Template == nil {
		return nil, fmt.Errorf("revision %s records no pod template", r.Name)
	}
	return data.Spec.Template, nil
}

// Split separates the revisions that record the template, whose data is given, from the others, in order. If none has the very same data,
// the latest one that means the same counts: another version may have serialized it differently.
func Split(all []*appsv1.ControllerRevision, t *corev1.PodTemplateSpec, data []byte) (current, old []*appsv1.ControllerRevision) {
	for _, r := range all {
		if bytes.Equal(r.Data.Raw, data) {
			current = append(current, r)
		} else {
			old = append(old, r)
		}
	}
	if len(current) > 0 {
		return current, old
	}
	for i, r := range slices.Backward(old) {
		if is, err := Template(r); err == nil && equality.Semantic.DeepEqual(is, t) {
			return []*appsv1.ControllerRevision{r}, slices.Delete(old, i, i+1)
		}
	}
	return nil, old
}

// Hash names the revision of a StatefulSet; collisions is the number of names that were taken.
func Hash(data []byte, collisions int32) string {
	h := fnv.New32()
	h.Write(data)
	h.Write([]byte(strconv.FormatInt(int64(collisions), 10)))
	return rand.SafeEncodeString(fmt.Sprint(h.Sum32()))
}

// Name is the name of the revision with the hash; long names of owners are truncated to 223 bytes.
func Name(owner, hash string) string {
	return owner[:min(len(owner), 223)] + "-" + hash
}

// New makes a revision. Its label with the hash is named by label.
func New(owner client.Object, kind schema.GroupVersionKind, t *corev1.PodTemplateSpec, data []byte, number int64, label, hash string) *appsv1.ControllerRevision {
	set := maps.Clone(t.Labels)
	if set == nil {
		set = map[string]string{}
	}
	set[label] = hash
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: owner.GetNamespace(), Name: Name(owner.GetName(), hash), Labels: set, Annotations: maps.Clone(owner.GetAnnotations()),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)},
		},
		Data:     runtime.RawExtension{Raw: data},
		Revision: number,
	}
}

// Claimed are the revisions of an owner.
type Claimed struct {
	// All are those that the owner controls or adopts, oldest first.
	All            []*appsv1.ControllerRevision
	Adopt, Release []*appsv1.ControllerRevision
}

// Claim decides which revisions belong to an owner that is not being deleted: the owned ones that match its selector and the orphans
// that do.
func Claim(owned, orphans []*appsv1.ControllerRevision, selector labels.Selector) Claimed {
	var c Claimed
	for _, r := range owned {
		if selector.Matches(labels.Set(r.Labels)) {
			c.All = append(c.All, r)
		} else if r.DeletionTimestamp == nil {
			c.Release = append(c.Release, r)
		}
	}
	for _, r := range orphans {
		if r.DeletionTimestamp == nil && selector.Matches(labels.Set(r.Labels)) {
			c.Adopt = append(c.Adopt, r)
			c.All = append(c.All, r)
		}
	}
	Sort(c.All)
	return c
}

// Sort sorts revisions by number, then by age and name.
func Sort(all []*appsv1.ControllerRevision) {
	slices.SortStableFunc(all, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
}

// Next is the number of the next revision. The revisions are sorted.
func Next(all []*appsv1.ControllerRevision) int64 {
	if len(all) == 0 {
		return 1
	}
	return all[len(all)-1].Revision + 1
}

// Excess lists the oldest revisions beyond the limit that are not live. The revisions are sorted.
func Excess(all []*appsv1.ControllerRevision, limit int32, live func(*appsv1.ControllerRevision) bool) []*appsv1.ControllerRevision {
	var past []*appsv1.ControllerRevision
	for _, r := range all {
		if !live(r) && r.DeletionTimestamp == nil {
			past = append(past, r)
		}
	}
	return past[:max(len(past)-int(max(limit, 0)), 0)]
}
