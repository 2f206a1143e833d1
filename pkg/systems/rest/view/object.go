package view

import (
	"cmp"
	"encoding/json"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

// whole returns the fields of an object, which may be given by its spec alone. Its kind's schema tells the two apart.
func whole(spec json.RawMessage, t kontrol.Target) (map[string]json.RawMessage, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(spec, &object); err != nil || object == nil || !specAlone(object, t) {
		return object, err
	}
	return map[string]json.RawMessage{"spec": spec}, nil
}

// specAlone reports whether the kind's spec has all fields, and the kind itself has none. An object of an unknown kind,
// such as a custom resource, has at least one of the fields that all kinds have.
func specAlone(fields map[string]json.RawMessage, t kontrol.Target) bool {
	t.APIVersion = cmp.Or(t.APIVersion, apiVersion(t.Kind))
	gv, _ := schema.ParseGroupVersion(t.APIVersion) // validated by the API server
	top := map[string]bool{"apiVersion": true, "kind": true, "metadata": true, "spec": true, "status": true}
	var inner map[string]bool
	if o, err := scheme.Scheme.New(gv.WithKind(t.Kind)); err == nil {
		kind := reflect.TypeOf(o).Elem()
		f, ok := kind.FieldByName("Spec")
		if !ok {
			return false
		}
		top, inner = jsonFields(kind), jsonFields(f.Type)
	}
	alone := false
	for name := range fields {
		if top[name] || inner != nil && !inner[name] {
			return false
		}
		alone = true
	}
	return alone
}

// jsonFields returns the names of a type's fields in JSON.
func jsonFields(t reflect.Type) map[string]bool {
	out := map[string]bool{}
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			out[name] = true
		}
	}
	return out
}

// versions are searched, in this order, for kinds whose version is not given.
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
