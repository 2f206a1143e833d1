package view

import (
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// Bundle converts a Bundle for clients.
func Bundle(b *kontrol.Bundle) wire.Bundle {
	s, r := &b.Status, &b.Spec.Rollout
	out := wire.Bundle{
		ID: kontrol.IDOf(string(b.UID)), Name: b.Name, ClusterID: b.Spec.ClusterName,
		ClusterSelector: selectorText(b.Spec.ClusterSelector),
		Mode:            string(b.Spec.Mode), DeletionPolicy: string(b.Spec.DeletionPolicy), Generation: b.Generation,
		BundleRollout: wire.BundleRollout{OnFailure: string(r.OnFailure), Approval: string(r.Approval), Paused: r.Paused},
		Content:       s.Content, ContentApproved: s.Content != "" && s.Approved == s.Content, Objects: s.Objects,
		State: b.Phase(), CreatedAt: b.CreationTimestamp.Time,
		Windows: windows(b.Spec.Windows), Clusters: []wire.BundleCluster{},
	}
	if s.ObservedGeneration == b.Generation {
		out.Message = s.Message
	}
	switch from := &b.Spec.Source; {
	case from.ConfigMap != nil:
		out.ConfigMap = from.ConfigMap.Namespace + "/" + from.ConfigMap.Name
	case from.Artifact != nil:
		out.Artifact = from.Artifact.Reference
	default:
		out.Inline = from.Inline
	}
	if r.MaxUnavailable != nil {
		out.MaxUnavailable = r.MaxUnavailable.String()
	}
	if r.HealthTimeout != nil {
		out.HealthTimeout = int64(r.HealthTimeout.Duration / time.Second)
	}
	for i := range s.Targets {
		t := &s.Targets[i]
		out.Clusters = append(out.Clusters, wire.BundleCluster{
			ClusterID: t.Name,
			State:     string(t.Phase),
			Message:   t.Message,
			Content:   t.Content,
			Wave:      t.Wave,
		})
	}
	return out
}

// NewBundle returns the Bundle of a request.
func NewBundle(in *wire.CreateBundle) (*kontrol.Bundle, error) {
	b := &kontrol.Bundle{ObjectMeta: metav1.ObjectMeta{Name: in.Name, Labels: map[string]string{Managed: "true"}}}
	if in.Name == "" {
		return nil, errors.New("name is required")
	}
	if in.ClusterID == "" && in.ClusterSelector == "" {
		return nil, errors.New("cluster_id or cluster_selector is required")
	}
	r := &in.BundleRollout
	if err := setSource(b, &in.BundleSource); err != nil {
		return nil, err
	}
	b.Spec.ClusterName, b.Spec.Mode, b.Spec.DeletionPolicy = in.ClusterID, kontrol.Mode(in.Mode), kontrol.DeletionPolicy(
		in.DeletionPolicy)
	b.Spec.Rollout = kontrol.Rollout{
		OnFailure: kontrol.FailurePolicy(r.OnFailure),
		Approval:  kontrol.Approval(r.Approval),
		Paused:    r.Paused,
	}
	if r.MaxUnavailable != "" {
		b.Spec.Rollout.MaxUnavailable = new(intstr.Parse(r.MaxUnavailable))
	}
	if r.HealthTimeout != 0 {
		b.Spec.Rollout.HealthTimeout = seconds(r.HealthTimeout)
	}
	var err error
	if b.Spec.Windows, err = newWindows(in.Windows); err != nil {
		return nil, err
	}
	b.Spec.ClusterSelector, err = selector(in.ClusterSelector)
	return b, err
}

// UpdateBundle applies a request to a Bundle.
func UpdateBundle(b *kontrol.Bundle, in *wire.UpdateBundle) error {
	if in.BundleSource != (wire.BundleSource{}) {
		if err := setSource(b, &in.BundleSource); err != nil {
			return err
		}
	}
	set(&b.Spec.ClusterName, in.ClusterID)
	set(&b.Spec.Mode, in.Mode)
	set(&b.Spec.DeletionPolicy, in.DeletionPolicy)
	if in.ClusterSelector != nil {
		var err error
		if b.Spec.ClusterSelector, err = selector(*in.ClusterSelector); err != nil {
			return err
		}
	}
	if in.Windows != nil {
		var err error
		if b.Spec.Windows, err = newWindows(*in.Windows); err != nil {
			return err
		}
	}
	r := &b.Spec.Rollout
	if in.MaxUnavailable != nil {
		r.MaxUnavailable = new(intstr.Parse(*in.MaxUnavailable))
	}
	if in.HealthTimeout != nil {
		r.HealthTimeout = seconds(*in.HealthTimeout)
	}
	set(&r.OnFailure, in.OnFailure)
	set(&r.Approval, in.Approval)
	if in.Paused != nil {
		r.Paused = *in.Paused
	}
	return nil
}

// set sets a field that the request has.
func set[T ~string](field *T, to *string) {
	if to != nil {
		*field = T(*to)
	}
}

// setSource sets the source of the objects. It keeps the other fields of an artifact source.
func setSource(b *kontrol.Bundle, in *wire.BundleSource) error {
	next := kontrol.BundleSource{Inline: in.Inline}
	if in.ConfigMap != "" {
		namespace, name, ok := strings.Cut(in.ConfigMap, "/")
		if !ok {
			return fmt.Errorf("config_map %q is not NAMESPACE/NAME", in.ConfigMap)
		}
		next.ConfigMap = &kontrol.ConfigMapReference{Namespace: namespace, Name: name}
	}
	if in.Artifact != "" {
		next.Artifact = &kontrol.Artifact{}
		if was := b.Spec.Source.Artifact; was != nil {
			next.Artifact = was.DeepCopy()
		}
		if next.Artifact.Reference = in.Artifact; strings.Contains(in.Artifact, "@") {
			next.Artifact.Interval = nil // a digest never changes
		}
	}
	b.Spec.Source = next
	return nil
}

// seconds returns a duration. An overflow becomes negative, which validation refuses.
func seconds(n int64) *metav1.Duration {
	if n > int64(24*time.Hour/time.Second) {
		n = -1
	}
	return &metav1.Duration{Duration: time.Duration(n) * time.Second}
}
