// Package legacy converts manifests of the in-process mini Kubernetes that Workers come from: Container, ReplicaSet
// with the name of a container, and Service with a glob as its selector.
//
//	Container   -> a Pod of the same name with a message queue
//	ReplicaSet  -> a Worker with as many replicas
//	Service     -> a Service that selects what the glob matches
//
// Its functions are pure.
package legacy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/controller"
)

const (
	// AnnotationContainer is on pods made from a Container. Its value is the Container's spec in JSON, for replica
	// sets that refer to it.
	AnnotationContainer = "workers.coracle.dev/container"
	// labelContainer is the label with the container's name, for services.
	labelContainer = "workers.coracle.dev/container"
	// servicePrefix is the prefix of the labels on the objects of a glob that matches several.
	servicePrefix = "service.workers.coracle.dev/"

	// maxDocument bounds a document, in bytes, maxDocuments their number.
	maxDocument, maxDocuments = 1 << 20, 1000
)

// Container is a container of the mini-kube's manifest.
type Container struct {
	// Module is accepted and ignored, since functions are built in.
	Module     string         `json:"module,omitempty"`
	Function   string         `json:"function,omitempty"`
	Parameters map[string]any `json:"parameters,omitempty"`
	Image      string         `json:"image,omitempty"`
	Command    []string       `json:"command,omitempty"`
	Args       []string       `json:"args,omitempty"`
}

type document struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string            `json:"name"`
		Namespace string            `json:"namespace,omitempty"`
		Labels    map[string]string `json:"labels,omitempty"`
	} `json:"metadata"`
	Spec json.RawMessage `json:"spec"`
}

type replicaSet struct {
	Container string `json:"container"`
	Replicas  *int32 `json:"replicas,omitempty"`
}

type service struct {
	Selector string `json:"selector"`
}

// Lookup returns an earlier converted Container by its name, or nil.
type Lookup func(name string) *Container

// Convert converts a stream of YAML documents. lookup may be nil.
func Convert(r io.Reader, namespace string, lookup Lookup) ([]ctrl.Object, error) {
	documents, err := read(r)
	if err != nil {
		return nil, err
	}
	c := conversion{namespace: namespace, containers: map[string]Container{}, lookup: lookup}
	for _, step := range []struct {
		kind string
		do   func(document) error
		// referenced kinds come first, whatever the order of the documents
	}{{"Container", c.container}, {"ReplicaSet", c.set}, {"Service", c.service}} {
		for _, d := range documents {
			if d.Kind != step.kind {
				continue
			}
			if errs := apivalidation.NameIsDNS1035Label(d.Metadata.Name, false); len(errs) > 0 {
				return nil, fmt.Errorf("%s %q: metadata.name: %s", d.Kind, d.Metadata.Name, errs[0])
			}
			if err := step.do(d); err != nil {
				return nil, fmt.Errorf("%s %s: %w", d.Kind, d.Metadata.Name, err)
			}
		}
	}
	return c.out, nil
}

func read(r io.Reader) ([]document, error) {
	d := utilyaml.NewYAMLReader(bufio.NewReader(r))
	var list []document
	for {
		text, err := d.Read()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		if len(text) > maxDocument || len(list) >= maxDocuments {
			return nil, fmt.Errorf("more than %d documents, or one of more than %d bytes", maxDocuments, maxDocument)
		}
		var doc document
		if err := yaml.UnmarshalStrict(text, &doc); err != nil {
			return nil, fmt.Errorf("document %d: %w", len(list)+1, err)
		}
		switch doc.Kind {
		case "Container", "ReplicaSet", "Service":
		case "":
			continue // comments only
		default:
			return nil, fmt.Errorf("document %d: kind %s is none of Container, ReplicaSet and Service: apply it with `coracle "+
				"ctl apply`", len(list)+1, doc.Kind)
		}
		list = append(list, doc)
	}
}

type conversion struct {
	namespace  string
	containers map[string]Container
	lookup     Lookup
	out        []ctrl.Object
}

func strict(d document, into any) error {
	if len(d.Spec) == 0 {
		return errors.New("spec is missing")
	}
	return yaml.UnmarshalStrict(d.Spec, into)
}

func (c *conversion) place(d document) string {
	if d.Metadata.Namespace != "" {
		return d.Metadata.Namespace
	}
	return c.namespace
}

// worker returns a Worker that runs a container. Its name and replicas are not set.
func (s Container) worker() (*workers.Worker, error) {
	w := &workers.Worker{TypeMeta: metav1.TypeMeta{APIVersion: workers.GroupVersion.String(), Kind: "Worker"}}
	w.Spec.Parameters = map[string]string{}
	for k, v := range s.Parameters {
		switch v := v.(type) {
		case string:
			w.Spec.Parameters[k] = v
		case nil:
		default:
			text, err := json.Marshal(v)
			if err != nil {
				return nil, err
			}
			w.Spec.Parameters[k] = string(text)
		}
	}
	w.Spec.Image, w.Spec.Command, w.Spec.Args = s.Image, s.Command, s.Args
	if s.Image != "" {
		if s.Function != "" {
			w.Spec.Parameters["function"] = s.Function
		}
		return w, nil
	}
	set := func(k, v string) {
		if w.Spec.Parameters[k] == "" {
			w.Spec.Parameters[k] = v
		}
	}
	switch strings.TrimSuffix(s.Function, "_worker") {
	case "echo":
		w.Spec.Function = workers.FunctionEcho
		set("prefix", "ECHO")
	case "calculator":
		w.Spec.Function = workers.FunctionCalculator
	case "processor", "forward", "forwarder":
		w.Spec.Function = workers.FunctionForward
		set("operation", "uppercase")
	case "aggregator", "aggregate":
		w.Spec.Function = workers.FunctionAggregate
	default:
		return nil, fmt.Errorf("function %q is none of echo_worker, calculator_worker, processor_worker and "+
			"aggregator_worker: name an image that handles the messages, in spec.image", s.Function)
	}
	return w, nil
}

func (c *conversion) container(d document) error {
	var spec Container
	if err := strict(d, &spec); err != nil {
		return err
	}
	w, err := spec.worker()
	if err != nil {
		return err
	}
	if _, twice := c.containers[d.Metadata.Name]; twice {
		return errors.New("is defined twice")
	}
	c.containers[d.Metadata.Name] = spec
	one := int32(1)
	w.Namespace, w.Spec.Replicas = c.place(d), &one
	workers.Default(w)
	t := controller.Template(w)
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	p := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: d.Metadata.Name,
			Labels: maps.Clone(d.Metadata.Labels), Annotations: t.Annotations}, Spec: t.Spec,
	}
	if p.Labels == nil {
		p.Labels = map[string]string{}
	}
	p.Labels[labelContainer] = p.Name
	p.Annotations[AnnotationContainer] = string(text)
	c.out = append(c.out, p)
	return nil
}

func (c *conversion) set(d document) error {
	var spec replicaSet
	if err := strict(d, &spec); err != nil {
		return err
	}
	template, ok := c.containers[spec.Container]
	if !ok && c.lookup != nil {
		if found := c.lookup(spec.Container); found != nil {
			template, ok = *found, true
		}
	}
	if !ok {
		return fmt.Errorf("spec.container: there is no Container %q", spec.Container)
	}
	w, err := template.worker()
	if err != nil {
		return err
	}
	w.Namespace, w.Name, w.Labels, w.Spec.Replicas = c.place(d), d.Metadata.Name, d.Metadata.Labels, spec.Replicas
	workers.Default(w)
	if errs := workers.Validate(w); len(errs) > 0 {
		return errs.ToAggregate()
	}
	c.out = append(c.out, w)
	return nil
}

func (c *conversion) service(d document) error {
	var spec service
	if err := strict(d, &spec); err != nil {
		return err
	}
	if _, err := path.Match(spec.Selector, ""); err != nil || spec.Selector == "" || strings.Contains(spec.Selector, "/") {
		return fmt.Errorf("spec.selector %q is not a glob, such as calc-*", spec.Selector)
	}
	var found []ctrl.Object
	for _, o := range c.out {
		if o.GetNamespace() == c.place(d) && matches(spec.Selector, o) {
			found = append(found, o)
		}
	}
	if len(found) == 0 {
		return fmt.Errorf("spec.selector %q matches no Container or ReplicaSet of this input", spec.Selector)
	}
	s := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: c.place(d), Name: d.Metadata.Name, Labels: d.Metadata.Labels},
		Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{}}}
	if len(found) == 1 {
		if w, ok := found[0].(*workers.Worker); ok {
			if w.Name == s.Name {
				return nil // the worker has its own service of that name
			}
			s.Spec.Selector[workers.LabelWorker] = w.Name
		} else {
			s.Spec.Selector[labelContainer] = found[0].GetName()
		}
		c.out = append(c.out, s)
		return nil
	}
	if slices.ContainsFunc(found, func(o ctrl.Object) bool {
		_, ok := o.(*workers.Worker)
		return ok && o.GetName() == s.Name
	}) {
		return errors.New("has the name of a ReplicaSet, but also selects others: choose another name")
	}
	label := servicePrefix + d.Metadata.Name
	s.Spec.Selector[label] = "true"
	for _, o := range found {
		if w, ok := o.(*workers.Worker); ok {
			if w.Spec.PodLabels == nil {
				w.Spec.PodLabels = map[string]string{}
			}
			w.Spec.PodLabels[label] = "true"
			continue
		}
		o.GetLabels()[label] = "true"
	}
	c.out = append(c.out, s)
	return nil
}

// matches reports whether a glob matches a container, or the first replica of a set, NAME-0.
func matches(glob string, o ctrl.Object) bool {
	name := o.GetName()
	switch o.(type) {
	case *workers.Worker:
		name += "-0"
	case *corev1.Service:
		return false
	}
	ok, err := path.Match(glob, name)
	return err == nil && ok
}
