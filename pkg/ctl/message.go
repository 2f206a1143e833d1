package ctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/bounded"
	"github.com/coracle-dev/coracle/pkg/ctl/legacy"
)

// SendOptions are the options of `coracle send`.
type SendOptions struct {
	// Target is pod/NAME or service/NAME.
	Target string
	// Payload is the message, unless File names a file ("-" is standard input).
	Payload, File string
	ContentType   string
	// Wait waits for the reply, up to Timeout; 0 means a minute.
	Wait    bool
	Timeout time.Duration
	// Batch sends each line as a message, all on one connection.
	Batch bool
}

// Send sends a message. It prints the reply to out, or which pod has accepted the message to progress.
func (c *Cluster) Send(ctx context.Context, o SendOptions, in io.Reader, out, progress io.Writer) error {
	kind, name, ok := strings.Cut(o.Target, "/")
	resource := map[string]string{"pod": "pods", "pods": "pods", "po": "pods", "service": "services", "services": "services", "svc": "services", "worker": "services"}[kind]
	if !ok || resource == "" || name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("%q is not pod/NAME or service/NAME", o.Target)
	}
	base, _, err := rest.DefaultServerUrlFor(c.REST)
	if err != nil {
		return err
	}
	u := base.JoinPath("/api/v1/namespaces", c.Namespace, resource, name, "message")
	if o.Batch {
		return c.sendLines(ctx, o, u.String(), in, out, progress)
	}
	payload, err := o.payload(in)
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(c.REST)
	if err != nil {
		return err
	}
	q := url.Values{}
	if o.Wait {
		q.Set("wait", "true")
	}
	if o.Timeout > 0 {
		q.Set("timeout", o.Timeout.String())
	}
	u.RawQuery = q.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), strings.NewReader(string(payload)))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", o.ContentType)
	if o.ContentType == "" {
		req.Header.Set("Content-Type", "text/plain; charset=utf-8")
		if json.Valid(payload) {
			req.Header.Set("Content-Type", "application/json")
		}
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := bounded.All(res.Body, workers.MaxPayload)
	if err != nil {
		return err
	}
	switch res.StatusCode {
	case http.StatusOK:
		if _, err := out.Write(body); err != nil {
			return err
		}
		if len(body) > 0 && body[len(body)-1] != '\n' {
			_, err = io.WriteString(out, "\n")
		}
		return err
	case http.StatusAccepted:
		_, err = fmt.Fprintf(progress, "message %s accepted by pod %s\n", res.Header.Get(workers.HeaderID), res.Header.Get(workers.HeaderPod))
		return err
	}
	var s metav1.Status
	if json.Unmarshal(body, &s) == nil && s.Message != "" {
		return fmt.Errorf("%s: %s", s.Reason, s.Message)
	}
	return fmt.Errorf("%s: %.1024s", res.Status, body)
}

func (o SendOptions) payload(in io.Reader) ([]byte, error) {
	switch {
	case o.File == "":
		return []byte(o.Payload), nil
	case o.File == "-":
		return bounded.All(in, workers.MaxPayload)
	}
	return bounded.File(o.File, workers.MaxPayload)
}

// maxManifest limits the files that are converted, in bytes.
const maxManifest = 16 << 20

// open opens the manifests of one option -f.
func open(file string, in io.Reader) (io.Reader, error) {
	if file == "-" {
		return bounded.Reader(in, maxManifest), nil
	}
	text, err := bounded.File(file, maxManifest)
	if err != nil {
		return nil, err
	}
	return strings.NewReader(string(text)), nil
}

// ConvertLegacy prints what manifests of the in-process mini Kubernetes are here.
func ConvertLegacy(file, namespace string, in io.Reader, out io.Writer) error {
	r, err := open(file, in)
	if err != nil {
		return err
	}
	list, err := legacy.Convert(r, namespace, nil)
	if err != nil {
		return err
	}
	return legacy.Print(out, list)
}

// ApplyLegacy converts manifests and applies the result. It prints what it has made of what.
func (c *Cluster) ApplyLegacy(ctx context.Context, file string, in io.Reader, out io.Writer) error {
	r, err := open(file, in)
	if err != nil {
		return err
	}
	list, err := legacy.Convert(r, c.Namespace, func(name string) *legacy.Container {
		var p corev1.Pod
		var found legacy.Container
		if c.Client.Get(ctx, ctrl.ObjectKey{Namespace: c.Namespace, Name: name}, &p) != nil || json.Unmarshal([]byte(p.Annotations[legacy.AnnotationContainer]), &found) != nil {
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

// apply applies an object on the server's side, and returns what has become of it.
func (c *Cluster) apply(ctx context.Context, o ctrl.Object) (string, error) {
	before := o.DeepCopyObject().(ctrl.Object)
	err := c.Client.Get(ctx, ctrl.ObjectKeyFromObject(o), before)
	if err != nil && !apierrors.IsNotFound(err) {
		return "", err
	}
	created := err != nil
	if ref := metav1.GetControllerOf(before); !created && ref != nil && ref.Kind == "Worker" {
		return "", fmt.Errorf("belongs to worker %s: name it otherwise", ref.Name)
	}
	if w, ok := o.(*workers.Worker); ok && !created { // the services that select it are in other manifests
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
	if err := c.Client.Apply(ctx, ctrl.ApplyConfigurationFromUnstructured(u), ctrl.FieldOwner("coracle-apply-legacy"), ctrl.ForceOwnership); err != nil {
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

// sameButStatus reports whether at most the status changed between two versions of an object, which its controllers may write at any time. Kinds
// without generations are never the same.
func sameButStatus(a, b ctrl.Object) bool {
	return a.GetGeneration() != 0 && a.GetGeneration() == b.GetGeneration() &&
		maps.Equal(a.GetLabels(), b.GetLabels()) && maps.Equal(a.GetAnnotations(), b.GetAnnotations())
}
