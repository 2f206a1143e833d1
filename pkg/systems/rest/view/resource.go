package view

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// Resource converts a Resource and its states for clients.
func Resource(r *kontrol.Resource, applied []*kontrol.AppliedState, current []*kontrol.CurrentState) wire.Resource {
	target := kontrol.TargetOf(r)
	out := wire.Resource{
		ID: r.Status.ID, ClusterID: r.Spec.ClusterName, ClusterSelector: selectorText(r.Spec.ClusterSelector),
		Namespace: target.Namespace, APIVersion: target.APIVersion, Kind: target.Kind, Name: target.Name,
		DesiredSpec: json.RawMessage(r.Spec.Template.Raw), Generation: r.Generation, Mode: string(r.Spec.Mode),
		DeletionPolicy: string(r.Spec.DeletionPolicy),
		Suspend:        r.Spec.Suspend, Windows: windows(r.Spec.Windows), Approval: string(r.Spec.Approval),
		ApprovedGeneration: r.Status.Approved, ResourceName: r.Name, State: r.State(),
		CreatedAt:     r.CreationTimestamp.Time,
		CurrentStates: []wire.CurrentState{}, AppliedStates: []wire.AppliedState{},
		Placement: wire.Placement{
			Overrides: overrides(r.Spec.Overrides), DependsOn: r.Spec.DependsOn, Wave: kontrol.WaveOf(r),
		},
	}
	if r.Spec.Ignore != nil {
		out.Ignore, _ = json.Marshal(r.Spec.Ignore) // of what was parsed
	}
	if r.Spec.Revision != nil {
		out.Revision = *r.Spec.Revision
	}
	if r.Status.ObservedGeneration == r.Generation {
		out.Message = r.Status.Message
	}
	for _, a := range applied {
		if s := &a.State; s.ResourceUID == string(r.UID) {
			out.AppliedStates = append(out.AppliedStates, Applied(a))
		}
	}
	for _, c := range current {
		if s := &c.State; s.ResourceUID == string(r.UID) {
			out.CurrentStates = append(out.CurrentStates, Current(c))
		}
	}
	return out
}

// Applied returns what was last applied of a Resource to a cluster.
func Applied(a *kontrol.AppliedState) wire.AppliedState {
	s := &a.State
	return wire.AppliedState{
		ResourceID: s.ResourceID, ClusterID: s.Cluster, Spec: content(s.Object), Generation: s.Generation,
		Revision: s.Revision, Status: string(s.Status), ErrorMessage: s.Error, UpdatedAt: microTime(s.Time),
	}
}

// Current returns what a cluster has of a Resource.
func Current(c *kontrol.CurrentState) wire.CurrentState {
	s := &c.State
	out := wire.CurrentState{
		ResourceID: s.ResourceID, ClusterID: s.Cluster, Spec: content(s.Object), Generation: s.Generation,
		Revision: s.Revision, K8sResourceVersion: s.ResourceVersion, Health: string(s.Health), DriftCount: s.DriftCount,
		ErrorMessage: s.Error, UpdatedAt: microTime(s.Time),
	}
	for i := range s.Drift {
		d := &s.Drift[i]
		out.Drift = append(out.Drift, wire.Drift{
			Path: d.Path, Type: string(d.Type), Desired: d.Desired, Actual: d.Actual, Manager: d.Manager,
			Operation: d.Operation, Time: when(d.Time), FirstSeen: d.FirstSeen.Time,
		})
	}
	return out
}

// Revisions returns the present and the former contents of a Resource, newest first.
func Revisions(r *kontrol.Resource) []wire.Revision {
	out := []wire.Revision{{
		Generation: r.Generation, DesiredSpec: r.Spec.Template.Raw, Overrides: overrides(r.Spec.Overrides),
	}}
	if r.Spec.Revision != nil {
		out[0].Revision = *r.Spec.Revision
	}
	for i := range r.Status.History {
		h := &r.Status.History[i]
		out = append(out, wire.Revision{
			Revision: h.Revision, Generation: h.Generation, ReplacedAt: when(&h.ReplacedAt), DesiredSpec: h.Template.Raw,
			Overrides: overrides(h.Overrides),
		})
	}
	return out
}

// Rollback restores a former content of a Resource of the caller's own. It reports whether there is that content.
func Rollback(r *kontrol.Resource, to *wire.RollbackResource) bool {
	for i := range r.Status.History {
		h := &r.Status.History[i]
		if to.Revision == h.Revision || to.Revision == 0 && to.Generation == h.Generation {
			r.Spec.Template, r.Spec.Overrides, r.Spec.Revision = h.Template, h.Overrides, &h.Revision
			return true
		}
	}
	return false
}

// Cluster returns a Cluster as clients see it.
func Cluster(c *kontrol.Cluster) wire.Cluster {
	out := wire.Cluster{
		ClusterID: c.Name, Labels: c.Labels, Local: c.Spec.Local, Pull: c.Spec.Pull, Suspend: c.Spec.Suspend,
		Server: c.Status.Server, Version: c.Status.Version, State: kontrol.ReasonConnecting,
		LastSeen: when(c.Status.LastSeen), CreatedAt: c.CreationTimestamp.Time,
	}
	if ready := meta.FindStatusCondition(c.Status.Conditions, kontrol.ConditionReady); ready != nil {
		out.State, out.Message = ready.Reason, ready.Message
		if ready.Status == metav1.ConditionTrue {
			out.State = kontrol.ConditionReady
		}
	}
	return out
}

func overrides(list []kontrol.Override) (out []json.RawMessage) {
	for i := range list {
		raw, _ := json.Marshal(&list[i]) // of what was parsed
		out = append(out, raw)
	}
	return out
}

// place sets how a Resource differs between clusters, and which come first.
func place(r *kontrol.Resource, in *wire.Placement) error {
	strict := func(name string, raw json.RawMessage, into any) error {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		if err := d.Decode(into); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
	for i, raw := range in.Overrides {
		var o kontrol.Override
		if err := strict(fmt.Sprintf("overrides[%d]", i), raw, &o); err != nil {
			return err
		}
		r.Spec.Overrides = append(r.Spec.Overrides, o)
	}
	if len(in.Ignore) > 0 {
		if err := strict("ignore", in.Ignore, &r.Spec.Ignore); err != nil {
			return err
		}
	}
	r.Spec.DependsOn = in.DependsOn
	if in.Wave != 0 {
		metav1.SetMetaDataAnnotation(&r.ObjectMeta, kontrol.AnnotationWave, strconv.Itoa(in.Wave))
	}
	return nil
}

func content(e runtime.RawExtension) json.RawMessage {
	if len(e.Raw) == 0 {
		return json.RawMessage("null")
	}
	return e.Raw
}

func microTime(t *metav1.MicroTime) *time.Time {
	if t == nil || t.IsZero() {
		return nil
	}
	return &t.Time
}

// NewResource returns the Resource of a request, with the given object name.
func NewResource(in *wire.CreateResource, objectName string) (*kontrol.Resource, error) {
	template, err := template(in.DesiredSpec, kontrol.Target{
		APIVersion: in.APIVersion,
		Kind:       in.Kind,
		Namespace:  in.Namespace,
		Name:       in.Name,
	})
	if err != nil {
		return nil, err
	}
	r := &kontrol.Resource{
		ObjectMeta: metav1.ObjectMeta{Name: objectName, Labels: map[string]string{Managed: "true"}},
		Spec: kontrol.ResourceSpec{
			ClusterName: in.ClusterID, Template: template, Revision: in.Revision, Mode: kontrol.Mode(in.Mode),
			DeletionPolicy: kontrol.DeletionPolicy(in.DeletionPolicy), Suspend: in.Suspend,
			Approval: kontrol.Approval(in.Approval),
		},
	}
	if r.Spec.Windows, err = newWindows(in.Windows); err != nil {
		return nil, err
	}
	if err := place(r, &in.Placement); err != nil {
		return nil, err
	}
	if in.ClusterID == "" && in.ClusterSelector == "" {
		return nil, errors.New("cluster_id or cluster_selector is required")
	}
	r.Spec.ClusterSelector, err = selector(in.ClusterSelector)
	return r, err
}

// PutResource replaces the settings of a Resource, which must be a copy. Its target object stays the same.
func PutResource(r *kontrol.Resource, in *wire.PutResource) error {
	t, to := kontrol.TargetOf(r), in.CreateResource
	to.APIVersion, to.Kind = cmp.Or(to.APIVersion, t.APIVersion), cmp.Or(to.Kind, t.Kind)
	to.Namespace, to.Name = cmp.Or(to.Namespace, t.Namespace), cmp.Or(to.Name, t.Name)
	selected := selectorText(r.Spec.ClusterSelector)
	if to.ClusterID == "" && to.ClusterSelector == "" {
		to.ClusterID, to.ClusterSelector = r.Spec.ClusterName, selected
	}
	next, err := NewResource(&to, r.Name)
	if err != nil {
		return err
	}
	if to.ClusterSelector == selected { // another form of the same selector is no change
		next.Spec.ClusterSelector = r.Spec.ClusterSelector
	}
	if next.Spec.Revision == nil {
		next.Spec.Revision = r.Spec.Revision
	}
	r.Spec = next.Spec
	delete(r.Annotations, kontrol.AnnotationWave)
	for k, v := range next.Annotations {
		metav1.SetMetaDataAnnotation(&r.ObjectMeta, k, v)
	}
	return nil
}

// PatchResource merges a JSON merge patch (RFC 7386) into the settings of a Resource, which must be a copy.
func PatchResource(r *kontrol.Resource, patch map[string]json.RawMessage) error {
	if spec, ok := patch["desired_spec"]; ok {
		object, err := whole(spec, kontrol.TargetOf(r))
		if err == nil && object != nil {
			spec, err = json.Marshal(object)
		}
		if err != nil {
			return err
		}
		patch = maps.Clone(patch)
		patch["desired_spec"] = spec
	}
	raw, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	has, err := json.Marshal(Resource(r, nil, nil))
	if err != nil {
		return err
	}
	if has, err = jsonpatch.MergePatch(has, raw); err != nil {
		return err
	}
	var to wire.PutResource
	if err := json.Unmarshal(has, &to); err != nil {
		return err
	}
	return PutResource(r, &to)
}

// everyCluster is the selector of all clusters.
const everyCluster = "*"

// selectorText returns a selector in kubectl's syntax.
func selectorText(s *metav1.LabelSelector) string {
	switch {
	case s == nil:
		return ""
	case len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0:
		return everyCluster
	}
	return metav1.FormatLabelSelector(s)
}

// selector parses a selector in kubectl's syntax.
func selector(text string) (*metav1.LabelSelector, error) {
	switch text {
	case "":
		return nil, nil
	case everyCluster:
		return &metav1.LabelSelector{}, nil
	}
	s, err := metav1.ParseToLabelSelector(text)
	if err != nil {
		return nil, fmt.Errorf("cluster_selector: %w", err)
	}
	return s, nil
}

// template returns the object with the target's identity. It refuses an object that already has another identity.
func template(spec json.RawMessage, t kontrol.Target) (runtime.RawExtension, error) {
	object, err := whole(spec, t)
	if err != nil || object == nil {
		return runtime.RawExtension{}, errors.New("desired_spec must be an object")
	}
	var meta map[string]json.RawMessage
	if m := object["metadata"]; len(m) > 0 {
		if err := json.Unmarshal(m, &meta); err != nil {
			return runtime.RawExtension{}, errors.New("desired_spec.metadata must be an object")
		}
	}
	if meta == nil {
		meta = map[string]json.RawMessage{}
	}
	if t.Kind == "" {
		_ = json.Unmarshal(object["kind"], &t.Kind) // a value that is not a string is refused below
	}
	if _, has := object["apiVersion"]; !has && t.APIVersion == "" {
		if t.APIVersion = apiVersion(t.Kind); t.APIVersion == "" {
			return runtime.RawExtension{}, fmt.Errorf("api_version is required: kind %q is none of Kubernetes' own", t.Kind)
		}
	}
	for _, f := range []struct {
		of               map[string]json.RawMessage
		key, path, value string
	}{
		{object, "apiVersion", "apiVersion", t.APIVersion}, {object, "kind", "kind", t.Kind},
		{meta, "namespace", "metadata.namespace", t.Namespace}, {meta, "name", "metadata.name", t.Name},
	} {
		var has string
		if raw, ok := f.of[f.key]; ok && json.Unmarshal(raw, &has) != nil {
			return runtime.RawExtension{}, fmt.Errorf("desired_spec.%s must be a string", f.path)
		}
		if f.key == "apiVersion" && has != "" { // another version of the same kind is the same object
			continue
		}
		if has != "" && f.value != "" && has != f.value {
			return runtime.RawExtension{}, fmt.Errorf("desired_spec.%s is %q, not %q", f.path, has, f.value)
		}
		if has == "" && f.value != "" {
			f.of[f.key] = quoted(f.value)
		}
	}
	object["metadata"], _ = json.Marshal(meta) // cannot fail: it was parsed before
	raw, err := json.Marshal(object)
	return runtime.RawExtension{Raw: raw}, err
}

func quoted(s string) json.RawMessage {
	raw, _ := json.Marshal(s)
	return raw
}
