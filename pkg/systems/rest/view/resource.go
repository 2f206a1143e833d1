package view

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// ResourceTerminating is the state of a Resource that is being deleted.
const ResourceTerminating = "Terminating"

// ResourceState returns the state of a Resource for clients: OutOfSync until its latest generation was observed.
func ResourceState(r *kontrol.Resource) string {
	switch {
	case r.DeletionTimestamp != nil:
		return ResourceTerminating
	case r.Status.ObservedGeneration != r.Generation:
		return string(kontrol.StateOutOfSync)
	}
	return string(r.Status.State)
}

// Resource converts a Resource and its states for clients.
func Resource(r *kontrol.Resource, applied []*kontrol.AppliedState, current []*kontrol.CurrentState) wire.Resource {
	target := kontrol.TargetOf(r)
	out := wire.Resource{
		ID: r.Status.ID, ClusterID: r.Spec.ClusterName, ClusterSelector: selectorText(r.Spec.ClusterSelector),
		Namespace: target.Namespace, APIVersion: target.APIVersion, Kind: target.Kind, Name: target.Name,
		DesiredSpec: json.RawMessage(r.Spec.Template.Raw), Generation: r.Generation, Mode: string(r.Spec.Mode),
		DeletionPolicy: string(r.Spec.DeletionPolicy),
		Suspend:        r.Spec.Suspend, Windows: windows(r.Spec.Windows), Approval: string(r.Spec.Approval),
		ApprovedGeneration: r.Status.Approved, ResourceName: r.Name, State: ResourceState(r),
		CreatedAt:     r.CreationTimestamp.Time,
		CurrentStates: []wire.CurrentState{}, AppliedStates: []wire.AppliedState{},
	}
	if r.Spec.Revision != nil {
		out.Revision = *r.Spec.Revision
	}
	if r.Status.ObservedGeneration == r.Generation {
		out.Message = r.Status.Message
	}
	for _, a := range applied {
		if s := &a.State; s.ResourceUID == string(r.UID) {
			out.AppliedStates = append(out.AppliedStates, wire.AppliedState{
				ResourceID: s.ResourceID, ClusterID: s.Cluster, Spec: content(s.Object), Generation: s.Generation,
				Revision: s.Revision,
				Status:   string(s.Status), ErrorMessage: s.Error, UpdatedAt: microTime(s.Time),
			})
		}
	}
	for _, c := range current {
		if s := &c.State; s.ResourceUID == string(r.UID) {
			out.CurrentStates = append(out.CurrentStates, wire.CurrentState{
				ResourceID: s.ResourceID, ClusterID: s.Cluster, Spec: content(s.Object), Generation: s.Generation,
				Revision:           s.Revision,
				K8sResourceVersion: s.ResourceVersion, Health: string(s.Health), DriftCount: s.DriftCount, ErrorMessage: s.Error,
				UpdatedAt: microTime(s.Time),
			})
		}
	}
	return out
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
	if in.ClusterID == "" && in.ClusterSelector == "" {
		return nil, errors.New("cluster_id or cluster_selector is required")
	}
	r.Spec.ClusterSelector, err = selector(in.ClusterSelector)
	return r, err
}

// UpdateResource applies a request to a Resource.
func UpdateResource(r *kontrol.Resource, in *wire.UpdateResource) error {
	var err error
	if len(in.DesiredSpec) > 0 {
		if r.Spec.Template, err = template(in.DesiredSpec, kontrol.TargetOf(r)); err != nil {
			return err
		}
	}
	if in.ClusterID != nil {
		r.Spec.ClusterName = *in.ClusterID
	}
	if in.ClusterSelector != nil {
		if r.Spec.ClusterSelector, err = selector(*in.ClusterSelector); err != nil {
			return err
		}
	}
	if in.Revision != nil {
		r.Spec.Revision = in.Revision
	}
	if in.Mode != nil {
		r.Spec.Mode = kontrol.Mode(*in.Mode)
	}
	if in.DeletionPolicy != nil {
		r.Spec.DeletionPolicy = kontrol.DeletionPolicy(*in.DeletionPolicy)
	}
	if in.Suspend != nil {
		r.Spec.Suspend = *in.Suspend
	}
	if in.Windows != nil {
		if r.Spec.Windows, err = newWindows(*in.Windows); err != nil {
			return err
		}
	}
	if in.Approval != nil {
		r.Spec.Approval = kontrol.Approval(*in.Approval)
	}
	return nil
}

// everyCluster is the text of a selector that selects all clusters.
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
	var object, meta map[string]json.RawMessage
	if err := json.Unmarshal(spec, &object); err != nil || object == nil {
		return runtime.RawExtension{}, errors.New("desired_spec must be an object")
	}
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

// versions are searched in this order for a kind whose version is not given.
var versions = []schema.GroupVersion{
	{Version: "v1"}, {Group: "apps", Version: "v1"}, {Group: "batch", Version: "v1"},
	{Group: "networking.k8s.io", Version: "v1"},
	{Group: "rbac.authorization.k8s.io", Version: "v1"}, {Group: "autoscaling", Version: "v2"},
	{Group: "policy", Version: "v1"},
	{Group: "storage.k8s.io", Version: "v1"}, {Group: "scheduling.k8s.io", Version: "v1"},
}

func apiVersion(kind string) string {
	for _, v := range versions {
		if scheme.Scheme.Recognizes(v.WithKind(kind)) {
			return v.String()
		}
	}
	return ""
}
