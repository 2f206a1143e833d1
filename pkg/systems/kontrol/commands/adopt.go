package commands

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/object"
)

// AdoptOptions are the options of `coracle kontrol adopt`.
type AdoptOptions struct {
	// Object is KIND/NAME, such as configmap/settings or deployment.apps/web.
	Object string
	// Cluster is the cluster with the object. The command's namespace applies.
	Cluster string
	// Name is the Resource's name; empty derives one from the object's name.
	Name string
	// Mode is the Resource's mode for drift; empty means Report.
	Mode string
	// Yes creates the Resource; without it, Adopt only prints it.
	Yes bool
}

// Adopt creates a Resource from an object of a cluster. Without Yes it only prints the Resource.
func (c *cluster) Adopt(ctx context.Context, o AdoptOptions, t command.Terminal) error {
	r, err := c.adoption(ctx, o)
	if err != nil {
		return err
	}
	if err := c.Client.Create(ctx, r.DeepCopy(), ctrl.DryRunAll); err != nil {
		return err
	}
	if !o.Yes {
		shown := map[string]any{
			"apiVersion": kontrol.GroupVersion.String(), "kind": "Resource", "metadata": map[string]any{"name": r.Name},
			"spec": map[string]any{
				"clusterName": r.Spec.ClusterName, "mode": r.Spec.Mode, "deletionPolicy": r.Spec.DeletionPolicy,
				"template": readable(object.Parse(r.Spec.Template.Raw)),
			},
		}
		data, err := yaml.Marshal(shown)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(t.Out, "%s", data)
		fmt.Fprintln(t.Err, "Nothing was changed. Add --yes to make this resource.")
		return err
	}
	if err := c.Client.Create(ctx, r); err != nil {
		return err
	}
	_, err = fmt.Fprintf(t.Out, "resource %s adopts %s of cluster %s\n", r.Name, kontrol.TargetOf(r), o.Cluster)
	return err
}

func (c *cluster) adoption(ctx context.Context, o AdoptOptions) (*kontrol.Resource, error) {
	kind, name, ok := strings.Cut(o.Object, "/")
	if !ok || kind == "" || name == "" || strings.Contains(name, "/") {
		return nil, fmt.Errorf("%q is not KIND/NAME, such as configmap/settings or deployment.apps/web", o.Object)
	}
	mode := kontrol.ModeReport
	if o.Mode != "" {
		all := []kontrol.Mode{kontrol.ModeReport, kontrol.ModeCorrect, kontrol.ModeEnforce}
		i := slices.IndexFunc(all, func(m kontrol.Mode) bool { return strings.EqualFold(string(m), o.Mode) })
		if i < 0 {
			return nil, fmt.Errorf("--mode %q is not report, correct or enforce", o.Mode)
		}
		mode = all[i]
	}
	client, err := c.connectTo(ctx, o.Cluster)
	if err != nil {
		return nil, err
	}
	mapping, err := mappingOf(client, kind)
	if meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("cluster %s has no kind %q: use its name, with the group if it has one, such as "+
			"deployment.apps", o.Cluster, kind)
	}
	if err != nil {
		return nil, err
	}
	if mapping.GroupVersionKind.Group == kontrol.GroupVersion.Group {
		return nil, errors.New("objects of Kontrol cannot be adopted")
	}
	key := ctrl.ObjectKey{Name: name}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		key.Namespace = c.Namespace
	}
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(mapping.GroupVersionKind)
	if err := client.Get(ctx, key, live); err != nil {
		return nil, fmt.Errorf("cluster %s: %w", o.Cluster, err)
	}
	if id := live.GetAnnotations()[kontrol.AnnotationID]; id != "" {
		return nil, fmt.Errorf("%s %s has the annotation %s: the resource with the id %s has it already", live.GetKind(),
			name, kontrol.AnnotationID, id)
	}
	if ref := metav1.GetControllerOf(live); ref != nil {
		return nil, fmt.Errorf("%s %s belongs to %s %s, which would change it back: adopt that", live.GetKind(), name,
			ref.Kind, ref.Name)
	}
	content, applied := written(live)
	if !applied {
		content = withoutDefaults(ctx, client, content)
	}
	raw, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	r := &kontrol.Resource{
		ObjectMeta: metav1.ObjectMeta{Name: o.Name},
		Spec: kontrol.ResourceSpec{
			ClusterName:    o.Cluster,
			Template:       runtime.RawExtension{Raw: raw},
			Mode:           mode,
			DeletionPolicy: kontrol.DeletionOrphan,
		},
	}
	r.Name = cmp.Or(r.Name, resourceName(o.Cluster, kontrol.TargetOf(r)))
	return r, nil
}

// mappingOf resolves a kind or plural, with or without its group, as a user writes it.
func mappingOf(client ctrl.Client, kind string) (*meta.RESTMapping, error) {
	resource, group, _ := strings.Cut(strings.ToLower(kind), ".")
	gvk, err := client.RESTMapper().KindFor(schema.GroupVersionResource{Group: group, Resource: resource})
	if err != nil {
		return nil, err
	}
	return client.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
}

func resourceName(cluster string, t kontrol.Target) string {
	parts := []string{cluster, t.Namespace, strings.ToLower(t.Kind), t.Name}
	name := strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), "-")
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '-'
	}, strings.ToLower(name))
	return strings.Trim(name[:min(len(name), 150)], "-.")
}

// written returns the fields of an object that users wrote: by kubectl's last-applied annotation, else the fields
// that a manager applied, else those that managers other than Kubernetes' own controllers updated, else all. Only
// the first two sources exclude defaults; applied is true for them.
func written(live *unstructured.Unstructured) (out map[string]any, applied bool) {
	if text := live.GetAnnotations()[lastApplied]; text != "" {
		out = object.Parse([]byte(text))
		if live.GetKind() != out["kind"] {
			out = nil
		}
		applied = out != nil
	}
	for _, operation := range []metav1.ManagedFieldsOperationType{
		metav1.ManagedFieldsOperationApply, metav1.ManagedFieldsOperationUpdate,
	} {
		if out != nil {
			break
		}
		all := fieldSet{}
		for _, m := range live.GetManagedFields() {
			if m.Operation == operation && m.Subresource == "" && !automatic(m.Manager) {
				union(all, fieldsOf(m))
			}
		}
		if inner(all) {
			out, _ = only(live.Object, all).(map[string]any)
		}
		applied = out != nil && operation == metav1.ManagedFieldsOperationApply
	}
	if out == nil { // a cluster without managed fields
		out = runtime.DeepCopyJSON(live.Object)
	}
	delete(out, "status")
	m := map[string]any{"name": live.GetName()}
	if ns := live.GetNamespace(); ns != "" {
		m["namespace"] = ns
	}
	if from, ok := out["metadata"].(map[string]any); ok {
		for _, k := range []string{"labels", "annotations"} {
			values, _ := from[k].(map[string]any)
			for key := range values {
				if key == lastApplied || strings.HasPrefix(key, "kontrol/") || strings.HasPrefix(key, "deployment.kubernetes.io/") {
					delete(values, key)
				}
			}
			if len(values) > 0 {
				m[k] = values
			}
		}
	}
	out["apiVersion"], out["kind"], out["metadata"] = live.GetAPIVersion(), live.GetKind(), m
	return out, applied
}

func automatic(manager string) bool {
	return strings.HasPrefix(manager, "kube-controller-manager") || strings.HasPrefix(manager, "kube-scheduler") ||
		strings.HasPrefix(manager, "kubelet") ||
		manager == kontrol.FieldManager || strings.HasSuffix(manager, "-controller") || strings.HasPrefix(manager, "system:")
}

func union(to, from fieldSet) {
	for k, v := range from {
		sub, _ := v.(fieldSet)
		has, ok := to[k].(fieldSet)
		if !ok {
			has = fieldSet{}
			to[k] = has
		}
		union(has, sub)
	}
}
