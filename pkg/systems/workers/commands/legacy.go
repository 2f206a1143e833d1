package commands

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/systems/command"
	"github.com/coracle-dev/coracle/pkg/systems/workers/legacy"
)

// maxManifest bounds the manifests of one option -f, in bytes.
const maxManifest = 16 << 20

// open opens the manifests of an option -f: a file, the files of a directory in the order of their names, or standard
// input.
func open(name string, in io.Reader) (io.Reader, error) {
	if name == "-" {
		return bounded.Reader(in, maxManifest), nil
	}
	if info, err := os.Stat(name); err != nil || !info.IsDir() {
		text, err := bounded.Configured(name, maxManifest)
		return bytes.NewReader(text), err
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	var all bytes.Buffer
	for _, e := range entries {
		if e.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) {
			continue
		}
		path := filepath.Join(name, e.Name())
		text, err := bounded.Configured(path, int64(max(0, maxManifest-all.Len())))
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&all, "---\n%s\n", text)
	}
	if all.Len() == 0 {
		return nil, fmt.Errorf("%s has no .yaml, .yml or .json file", name)
	}
	return &all, nil
}

// ConvertLegacy prints the objects that correspond to manifests of the in-process mini Kubernetes.
func ConvertLegacy(file, namespace string, in io.Reader, out io.Writer) error {
	r, err := open(file, in)
	if err != nil {
		return err
	}
	list, err := legacy.Convert(r, namespace, nil)
	if err != nil {
		return err
	}
	return command.PrintManifests(out, list...)
}

// ApplyLegacy converts manifests and applies the result. It prints a line for each object.
func (c cluster) ApplyLegacy(ctx context.Context, file string, in io.Reader, out io.Writer) error {
	r, err := open(file, in)
	if err != nil {
		return err
	}
	list, err := legacy.Convert(r, c.Namespace, func(name string) *legacy.Container {
		var p corev1.Pod
		var found legacy.Container
		if c.Client.Get(ctx, ctrl.ObjectKey{Namespace: c.Namespace, Name: name}, &p) != nil ||
			json.Unmarshal([]byte(p.Annotations[legacy.AnnotationContainer]), &found) != nil {
			return nil
		}
		return &found
	})
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return errors.New("there is no Container, ReplicaSet or Service to apply")
	}
	made := map[string]string{"Pod": "Container", "Worker": "ReplicaSet", "Service": "Service"}
	for _, o := range list {
		kind := o.GetObjectKind().GroupVersionKind().Kind
		what, err := c.apply(ctx, o)
		if err != nil {
			return fmt.Errorf("%s %s: %w", kind, o.GetName(), err)
		}
		fmt.Fprintf(out, "%s %s -> %s/%s %s\n", made[kind], o.GetName(), strings.ToLower(kind), o.GetName(), what)
	}
	return nil
}

// apply applies an object with server-side apply, and returns the outcome in a word.
func (c cluster) apply(ctx context.Context, o ctrl.Object) (string, error) {
	before := o.DeepCopyObject().(ctrl.Object)
	err := c.Client.Get(ctx, ctrl.ObjectKeyFromObject(o), before)
	if err != nil && !apierrors.IsNotFound(err) {
		return "", err
	}
	created := err != nil
	if ref := metav1.GetControllerOf(before); !created && ref != nil && ref.Kind == "Worker" {
		return "", fmt.Errorf("belongs to worker %s: choose another name", ref.Name)
	}
	if w, ok := o.(*workers.Worker); ok && !created { // other manifests have the services that select it
		for k, v := range before.(*workers.Worker).Spec.PodLabels {
			if w.Spec.PodLabels == nil {
				w.Spec.PodLabels = map[string]string{}
			}
			if _, has := w.Spec.PodLabels[k]; !has {
				w.Spec.PodLabels[k] = v
			}
		}
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return "", err
	}
	u := &unstructured.Unstructured{Object: fields}
	unstructured.RemoveNestedField(u.Object, "status")
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	if err := c.Client.Apply(ctx, ctrl.ApplyConfigurationFromUnstructured(u), ctrl.FieldOwner("coracle-apply-legacy"),
		ctrl.ForceOwnership); err != nil {
		if apierrors.IsInvalid(err) && !created && u.GetKind() == "Pod" {
			return "", fmt.Errorf("a running container cannot be changed: delete pod %s first: %w", o.GetName(), err)
		}
		return "", err
	}
	switch {
	case created:
		return "created", nil
	case u.GetResourceVersion() == before.GetResourceVersion(), sameButStatus(before, u):
		return "unchanged", nil
	}
	return "configured", nil
}

// sameButStatus reports whether two versions of an object differ at most in the status, which controllers write at any
// time. It is false for kinds without generations.
func sameButStatus(a, b ctrl.Object) bool {
	return a.GetGeneration() != 0 && a.GetGeneration() == b.GetGeneration() &&
		maps.Equal(a.GetLabels(), b.GetLabels()) && maps.Equal(a.GetAnnotations(), b.GetAnnotations())
}
