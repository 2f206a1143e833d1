package static

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The annotations of static pods, as the kubelet sets them.
const (
	// SourceAnnotation holds the origin of a pod: FromFile for static pods.
	SourceAnnotation = "kubernetes.io/config.source"
	FromFile         = "file"
	fromAPI          = "api"
	hashAnnotation   = "kubernetes.io/config.hash"
	seenAnnotation   = "kubernetes.io/config.seen"
)

// sources is the common prefix of these annotations.
const sources = "kubernetes.io/config."

// IsStatic reports whether a pod comes from a file of the node. For a pod of the API, pass WithoutSource's result.
func IsStatic(p *corev1.Pod) bool {
	source := p.Annotations[SourceAnnotation]
	return source != "" && source != fromAPI
}

// WithoutSource returns a pod of the API without the annotations of static pods, which any user could set.
func WithoutSource(p *corev1.Pod) *corev1.Pod {
	claims := func(key, _ string) bool { return strings.HasPrefix(key, sources) }
	for key := range p.Annotations {
		if claims(key, "") {
			out := *p
			out.Annotations = maps.Clone(p.Annotations)
			maps.DeleteFunc(out.Annotations, claims)
			return &out
		}
	}
	return p
}

func nameOf(p *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func (m *Manager) decode(file string, data []byte) (*corev1.Pod, error) {
	p, err := m.c.Decode(data, func(p *corev1.Pod) error { return complete(p, file, m.c.NodeName) })
	if err != nil {
		return nil, err
	}
	if why := doubtful(p); why != "" {
		m.c.Logger.Warn(why, "file", file, "pod", nameOf(p))
	}
	return p, nil
}

// complete turns a decoded pod into a static pod of this node. Its UID is a hash of the manifest's content, the file
// and the node, so a changed manifest is a different pod.
func complete(p *corev1.Pod, file, node string) error {
	if p.Name == "" {
		return errors.New("metadata.name is missing")
	}
	for field, set := range map[string]bool{
		"uid": p.UID != "", "generateName": p.GenerateName != "", "ownerReferences": len(p.OwnerReferences) > 0,
		"finalizers": len(p.Finalizers) > 0, "deletionTimestamp": p.DeletionTimestamp != nil,
	} {
		if set {
			return fmt.Errorf("metadata.%s is set: remove it, the node sets it for static pods", field)
		}
	}
	if p.Spec.NodeName != "" && p.Spec.NodeName != node {
		return fmt.Errorf("spec.nodeName is %q, and this node is %s: remove it", p.Spec.NodeName, node)
	}
	p.ObjectMeta = metav1.ObjectMeta{
		Name:        p.Name,
		Namespace:   p.Namespace,
		Labels:      p.Labels,
		Annotations: maps.Clone(p.Annotations),
	}
	p.Status = corev1.PodStatus{}
	said, err := json.Marshal(p)
	if err != nil {
		return err
	}
	h := sha256.Sum256(fmt.Appendf(said, "host:%sfile:%s", node, file))
	p.UID = types.UID(hex.EncodeToString(h[:16]))
	p.Name += "-" + node
	p.Namespace = cmp.Or(p.Namespace, metav1.NamespaceDefault)
	p.Spec.NodeName = node
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	delete(p.Annotations, corev1.MirrorPodAnnotationKey)
	p.Annotations[SourceAnnotation], p.Annotations[hashAnnotation] = FromFile, string(p.UID)
	p.Annotations[seenAnnotation] = time.Now().Format(time.RFC3339Nano)
	if all := (corev1.Toleration{
		Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
	}); !slices.Contains(p.Spec.Tolerations, all) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, all)
	}
	p.Status.Phase = corev1.PodPending
	return nil
}

// nodeCritical is the priority of system-node-critical.
const nodeCritical = 2_000_001_000

// doubtful returns a warning if the pod's priority may not be what its author expects, or "". No API server resolves
// the priority class of a static pod.
func doubtful(p *corev1.Pod) string {
	priority, class := p.Spec.Priority, p.Spec.PriorityClassName
	switch {
	case priority == nil && class != "":
		return "static pod has a priorityClassName and no priority: the node does not use the class, and the API may " +
			"refuse its mirror"
	case priority != nil && class == "":
		return "static pod has a priority and no priorityClassName: the API refuses its mirror unless the default class " +
			"has that priority"
	case priority != nil && (*priority != nodeCritical || class != "system-node-critical"):
		return "static pod has another priority than system-node-critical: others may try to evict its mirror, without " +
			"effect on the pod"
	}
	return ""
}

func mirrorOf(p *corev1.Pod, node string, uid types.UID) *corev1.Pod {
	m := p.DeepCopy()
	controller := true
	m.UID, m.ResourceVersion = "", ""
	m.Annotations[corev1.MirrorPodAnnotationKey] = p.Annotations[hashAnnotation]
	m.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Node", Name: node, UID: uid, Controller: &controller},
	}
	return m
}

func isMirrorOf(m, p *corev1.Pod, node types.UID) bool {
	return m.Annotations[corev1.MirrorPodAnnotationKey] == p.Annotations[hashAnnotation] &&
		(node == "" || len(m.OwnerReferences) == 1 && m.OwnerReferences[0].UID == node)
}
