// Package history records the revisions of a workload's pod template as ControllerRevisions in upstream's format, so
// that kubectl rollout history and undo work and an upstream controller can take over. Its invariant: Plan is pure; it
// never deletes a revision that a pod or the status refers to.
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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// HashLabel is the label with the hash of a StatefulSet revision's data.
const HashLabel = "controller.kubernetes.io/hash"

// Data returns the data of a revision: a strategic merge patch that replaces the pod template, byte for byte as
// upstream's.
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

// Template returns the pod template in a revision.
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
		return nil, fmt.Errorf("revision %s has no pod template", r.Name)
	}
	return data.Spec.Template, nil
}

// Split separates the revisions of the template, whose encoding is data, from the others, keeping the order. If no
// revision has exactly this data, the latest one with the same meaning is current: another Kubernetes version may have
// encoded it differently.
func Split(all []*appsv1.ControllerRevision, t *corev1.PodTemplateSpec,
	data []byte) (current, old []*appsv1.ControllerRevision) {
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

// Hash returns the hash in a StatefulSet revision's name; collisions is the number of previous name collisions.
func Hash(data []byte, collisions int32) string {
	h := fnv.New32()
	h.Write(data)
	h.Write([]byte(strconv.FormatInt(int64(collisions), 10)))
	return rand.SafeEncodeString(fmt.Sprint(h.Sum32()))
}

// Name returns the name of a revision with this hash. Long owner names are truncated to 223 bytes.
func Name(owner, hash string) string {
	return owner[:min(len(owner), 223)] + "-" + hash
}

// New creates a revision. label is the name of its label with the hash.
func New(owner client.Object, kind schema.GroupVersionKind, t *corev1.PodTemplateSpec, data []byte, number int64,
	label, hash string) *appsv1.ControllerRevision {
	set := maps.Clone(t.Labels)
	if set == nil {
		set = map[string]string{}
	}
	set[label] = hash
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: owner.GetNamespace(), Name: Name(owner.GetName(), hash), Labels: set,
			Annotations:     maps.Clone(owner.GetAnnotations()),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)},
		},
		Data:     runtime.RawExtension{Raw: data},
		Revision: number,
	}
}

// Sort sorts revisions by number, then by age and name.
func Sort(all []*appsv1.ControllerRevision) {
	slices.SortStableFunc(all, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name))
	})
}

// Next returns the number of the next revision. all must be sorted.
func Next(all []*appsv1.ControllerRevision) int64 {
	if len(all) == 0 {
		return 1
	}
	return all[len(all)-1].Revision + 1
}

// Excess returns the oldest revisions beyond the limit that are not live. all must be sorted.
func Excess(all []*appsv1.ControllerRevision, limit int32,
	live func(*appsv1.ControllerRevision) bool) []*appsv1.ControllerRevision {
	var past []*appsv1.ControllerRevision
	for _, r := range all {
		if !live(r) && r.DeletionTimestamp == nil {
			past = append(past, r)
		}
	}
	return past[:max(len(past)-int(max(limit, 0)), 0)]
}
