package bundlecontroller

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/bundle"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/object"
)

// longestName limits the name of a Resource: the names of its states also contain the cluster's name.
const longestName = 150

// nameOf returns a readable name for an object's Resource on a cluster. A hash makes it unique.
func nameOf(b *kontrol.Bundle, cluster string, o *bundle.Object) string {
	sum := sha256.Sum256([]byte(b.Name + "\x00" + cluster + "\x00" + o.Key()))
	hash := "-" + hex.EncodeToString(sum[:5])
	text := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' {
			return c
		}
		return '-'
	}, strings.ToLower(b.Name+"-"+cluster+"-"+o.Kind+"-"+o.Name))
	return strings.TrimRight(text[:min(len(text), longestName-len(hash))], "-") + hash
}

func resource(b *kontrol.Bundle, cluster string, o *bundle.Object) *kontrol.Resource {
	r := &kontrol.Resource{
		ObjectMeta: metav1.ObjectMeta{Name: nameOf(b, cluster, o), Labels: map[string]string{kontrol.LabelBundle: b.Name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(b, kontrol.GroupVersion.WithKind("Bundle"))}},
		Spec: kontrol.ResourceSpec{
			ClusterName:    cluster,
			Template:       runtime.RawExtension{Raw: o.JSON},
			Mode:           b.Spec.Mode,
			Ignore:         b.Spec.Ignore,
			DeletionPolicy: b.Spec.DeletionPolicy,
			Windows:        b.Spec.Windows,
		},
	}
	for i := range b.Spec.Overrides {
		v := &b.Spec.Overrides[i]
		if (v.Kind == "" || v.Kind == o.Kind) && (v.Namespace == "" || v.Namespace == o.Namespace) &&
			(v.Name == "" || v.Name == o.Name) && (v.ClusterName == "" || v.ClusterName == cluster) {
			r.Spec.Overrides = append(r.Spec.Overrides, v.Override)
		}
	}
	return r
}

// same reports whether a Resource is as desired. It ignores fields that only users set, such as spec.suspend.
func same(has, want *kontrol.Resource) bool {
	a, b := &has.Spec, &want.Spec
	return object.Same(a.Template.Raw, b.Template.Raw) && equality.Semantic.DeepEqual(a.Windows, b.Windows) &&
		a.ClusterName ==
			b.ClusterName && a.ClusterSelector == nil && a.Mode == b.Mode && a.DeletionPolicy == b.DeletionPolicy &&
		equality.Semantic.DeepEqual(a.Ignore, b.Ignore) &&
		equality.Semantic.DeepEqual(a.Overrides, b.Overrides) && has.Labels[kontrol.LabelBundle] ==
		want.Labels[kontrol.LabelBundle]
}

// merged returns want, or a copy of has, if that is not nil, with the fields that same compares.
func merged(has, want *kontrol.Resource) *kontrol.Resource {
	if has == nil {
		return want
	}
	next := has.DeepCopy()
	w := &want.Spec
	next.Spec.Template, next.Spec.ClusterName, next.Spec.ClusterSelector, next.Spec.Mode,
		next.Spec.DeletionPolicy = w.Template, w.ClusterName, nil, w.Mode, w.DeletionPolicy
	next.Spec.Ignore, next.Spec.Overrides, next.Spec.Windows = w.Ignore, w.Overrides, w.Windows
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	next.Labels[kontrol.LabelBundle] = want.Labels[kontrol.LabelBundle]
	return next
}
