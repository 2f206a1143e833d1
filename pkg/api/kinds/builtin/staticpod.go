package builtin

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	internal "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"sigs.k8s.io/yaml"
)

// StaticPod decodes a static pod's manifest (YAML or JSON), calls complete with the pod, sets defaults and validates
// it like upstream's kubelet. Several documents, unknown or duplicate fields, and pods that need the API (secrets,
// claims, service accounts) are errors.
func StaticPod(data []byte, complete func(*corev1.Pod) error) (*corev1.Pod, error) {
	data, err := onlyDocument(data)
	if err != nil {
		return nil, err
	}
	p := &corev1.Pod{}
	if err := yaml.UnmarshalStrict(data, p); err != nil {
		return nil, fmt.Errorf("not a pod in YAML or JSON: %w", err)
	}
	if p.APIVersion != "v1" || p.Kind != "Pod" {
		return nil, fmt.Errorf("it is of kind %q of %q: only kind Pod of v1 can be run from a file", p.Kind, p.APIVersion)
	}
	if err := complete(p); err != nil {
		return nil, err
	}
	legacyscheme.Scheme.Default(p)
	out, err := legacyscheme.Scheme.ConvertToVersion(p, internal.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	pod, ok := out.(*internal.Pod)
	if !ok {
		return nil, fmt.Errorf("%T is no pod", out)
	}
	if errs := corevalidation.ValidatePodCreate(pod,
		podutil.GetValidationOptionsFromPodSpecAndMeta(&pod.Spec, nil, &pod.ObjectMeta, nil)); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	refers, what, err := podutil.HasAPIObjectReference(pod)
	if err != nil {
		return nil, err
	}
	if refers {
		return nil, fmt.Errorf("static pods may not reference %s: they must run without an API server", what)
	}
	p.Status.QOSClass = qos.ComputePodQOS(p)
	return p, nil
}

// onlyDocument returns the only non-empty document. A second one is an error.
func onlyDocument(data []byte) (only []byte, err error) {
	reader := yamlutil.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		var any any
		if err := yaml.Unmarshal(document, &any); err == nil && any == nil {
			continue // only comments
		}
		if only != nil {
			return nil, errors.New("it has several documents: put each pod into a file of its own")
		}
		only = document
	}
	if only == nil {
		return nil, errors.New("it is empty")
	}
	return only, nil
}
