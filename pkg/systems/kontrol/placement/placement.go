// Package placement decides which clusters a Resource selects, and renders the object for each of them.
//
// It contains only pure functions. Its invariant: overrides change neither which object it is nor the limits of a
// template.
package placement

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	jsonpatch "github.com/evanphx/json-patch/v5"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

// Matches reports whether a name or, if that is empty, a selector selects a cluster. Both must be validated; without
// both every cluster matches.
func Matches(name string, selector *metav1.LabelSelector, c *kontrol.Cluster) bool {
	if name != "" {
		return name == c.Name
	}
	if selector == nil {
		return true
	}
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && s.Matches(labels.Set(c.Labels))
}

// operation is an operation of a JSON patch (RFC 6902).
type operation struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	From  string          `json:"from,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
}

// resolve returns the operations of all overrides that match a cluster, with the cluster's values; nil if there are
// none.
func resolve(r *kontrol.Resource, c *kontrol.Cluster) (ops []operation, err error) {
	for i := range r.Spec.Overrides {
		o := &r.Spec.Overrides[i]
		if !Matches(o.ClusterName, o.ClusterSelector, c) {
			continue
		}
		for j := range o.Patch {
			p := &o.Patch[j]
			op := operation{Op: p.Op, Path: p.Path, From: p.From}
			switch {
			case p.ValueFrom != nil:
				if op.Value, err = value(p.ValueFrom, c); err != nil {
					return nil, fmt.Errorf("spec.overrides[%d].patch[%d]: %w", i, j, err)
				}
			case p.Value != nil:
				op.Value = p.Value.Raw
			}
			ops = append(ops, op)
		}
	}
	return ops, nil
}

// value returns the JSON of the cluster's name or label, converted to v.Type.
func value(v *kontrol.ValueSource, c *kontrol.Cluster) (json.RawMessage, error) {
	text, ok := c.Name, true
	if v.Label != "" {
		text, ok = c.Labels[v.Label]
	}
	switch {
	case !ok && v.Default == nil:
		return nil, fmt.Errorf("cluster %s has no label %s: set it, or a default", c.Name, v.Label)
	case !ok:
		text = *v.Default
	}
	text = v.Prefix + text + v.Suffix
	switch v.Type {
	case kontrol.ValueInteger:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q of cluster %s is not an integer", text, c.Name)
		}
		return json.RawMessage(strconv.FormatInt(n, 10)), nil
	case kontrol.ValueBoolean:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return nil, fmt.Errorf("%q of cluster %s is not a boolean", text, c.Name)
		}
		return json.RawMessage(strconv.FormatBool(b)), nil
	}
	return json.Marshal(text)
}

// Variant returns a hash of the overrides for a cluster and the cluster's values in them: if it changes, the object
// must be applied again. It is empty without overrides for the cluster or if c is nil.
func Variant(r *kontrol.Resource, c *kontrol.Cluster) string {
	if len(r.Spec.Overrides) == 0 || c == nil {
		return ""
	}
	ops, err := resolve(r, c)
	if err == nil && ops == nil {
		return ""
	}
	raw, _ := json.Marshal(ops) // it was parsed from JSON
	if err != nil {
		raw = append(raw, err.Error()...)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8])
}

// Render returns the JSON of a cluster's object. The error names the override that cannot be applied.
func Render(r *kontrol.Resource, c *kontrol.Cluster) ([]byte, error) {
	if len(r.Spec.Overrides) == 0 || c == nil {
		return r.Spec.Template.Raw, nil
	}
	ops, err := resolve(r, c)
	if err != nil || ops == nil {
		return r.Spec.Template.Raw, err
	}
	raw := r.Spec.Template.Raw
	options := &jsonpatch.ApplyOptions{AccumulatedCopySizeLimit: kontrol.MaxTemplate}
	for i, op := range ops {
		one, err := json.Marshal([]operation{op})
		if err != nil {
			return nil, err
		}
		patch, err := jsonpatch.DecodePatch(one)
		if err == nil {
			raw, err = patch.ApplyWithOptions(raw, options)
		}
		if err != nil {
			return nil, fmt.Errorf("operation %d for cluster %s, %s %s: %w", i, c.Name, op.Op, op.Path, err)
		}
		if len(raw) > kontrol.MaxTemplate { // checked each time, since the next operation may double it
			return nil, fmt.Errorf("operation %d for cluster %s, %s %s: the object has more than %d bytes", i, c.Name, op.Op,
				op.Path, kontrol.MaxTemplate)
		}
	}
	made := &kontrol.Resource{Spec: kontrol.ResourceSpec{Template: runtime.RawExtension{Raw: raw}}}
	if errs := kontrol.ValidateTemplate(made); len(errs) > 0 {
		return nil, fmt.Errorf("overrides for cluster %s: %w", c.Name, errs.ToAggregate())
	}
	if kontrol.TargetOf(made) != kontrol.TargetOf(r) {
		return nil, errors.New("overrides must not change the object's apiVersion, kind, namespace or name")
	}
	return raw, nil
}
