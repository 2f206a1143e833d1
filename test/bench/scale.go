package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// fakeLabel is a label of the nodes of `coracle node fake`, which only simulate their pods.
const fakeLabel = "coracle.dev/fake-node"

// scaleTimeout is the timeout of each figure in this file.
const scaleTimeout = 5 * time.Minute

// fakePod returns the template of a pod that only fake nodes may run.
func (c *cluster) fakePod(labels map[string]string) corev1.PodTemplateSpec {
	p := c.pod("")
	p.Spec.Affinity = &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: fakeLabel, Operator: corev1.NodeSelectorOpExists}}},
			}}},
	}
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: p.Spec}
}

// scales are measurements of controllers on existing fake nodes (`coracle node fake`). Each is a group that runs
// only if -only names it.
var scales = map[string]func(context.Context, *cluster, string) ([]figure, error){
	"deployment": func(ctx context.Context, c *cluster, ns string) ([]figure, error) {
		took, err := c.deployment(ctx, ns, 1000)
		return []figure{seconds("Deployment of 1,000 pods on fake nodes", took, 2)}, err
	},
	"job": func(ctx context.Context, c *cluster, ns string) ([]figure, error) {
		took, err := c.job(ctx, ns, 10_000)
		return []figure{seconds("indexed Job of 10,000 on fake nodes", took, 15)}, err
	},
	"namespace": func(ctx context.Context, c *cluster, ns string) ([]figure, error) {
		ns += "-full"
		if _, err := c.client.CoreV1().Namespaces().Create(ctx, namespace(ns), metav1.CreateOptions{}); err != nil {
			return nil, err
		}
		if err := c.configMaps(ctx, ns, 5000); err != nil {
			return nil, errors.Join(err, c.remove(ctx, ns))
		}
		began := time.Now()
		err := c.remove(ctx, ns)
		return []figure{seconds("namespace with 5,000 objects deleted", time.Since(began), 3)}, err
	},
	"services": func(ctx context.Context, c *cluster, ns string) ([]figure, error) {
		writing, settling, err := c.services(ctx, ns, 300, c.servicePods)
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("300 services on %d pods, all changed", c.servicePods)
		return []figure{
			{Name: name + ": pods written", Value: float64(c.servicePods) / writing.Seconds(), Unit: "/s", More: true},
			seconds(name+": settled after the last", settling, 3),
		}, nil
	},
}

func seconds(name string, d time.Duration, budget float64) figure {
	return figure{Name: name, Value: d.Seconds(), Unit: "s", Budget: budget}
}

func scale(ctx context.Context, c *cluster, name string) (figures []figure, err error) {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: fakeLabel, Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(nodes.Items) == 0 {
		return nil, errors.New("there are no fake nodes: run `coracle node fake --count 1000` beside this")
	}
	ctx, cancel := context.WithTimeout(ctx, scaleTimeout)
	defer cancel()
	err = c.within(ctx, func(ns string) error {
		figures, err = scales[name](ctx, c, ns)
		return err
	})
	return figures, err
}

func only(name string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
}

func (c *cluster) deployment(ctx context.Context, ns string, n int32) (time.Duration, error) {
	labels := map[string]string{"app": "scale"}
	began := time.Now()
	if _, err := c.client.AppsV1().Deployments(ns).Create(ctx,
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "scale"},
			Spec: appsv1.DeploymentSpec{
				Replicas: &n,
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: c.fakePod(labels),
			}}, metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	err := follow(ctx, c.client.AppsV1().Deployments(ns).Watch, only("scale"), func(e watch.Event) bool {
		d, ok := e.Object.(*appsv1.Deployment)
		return ok && d.Status.AvailableReplicas == n
	})
	return time.Since(began), err
}

// job returns how long an indexed Job of n pods takes, with up to a thousand pods at a time.
func (c *cluster) job(ctx context.Context, ns string, n int32) (time.Duration, error) {
	indexed, parallel := batchv1.IndexedCompletion, min(n, 1000)
	template := c.fakePod(nil)
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	began := time.Now()
	if _, err := c.client.BatchV1().Jobs(ns).Create(ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "scale"},
		Spec: batchv1.JobSpec{Completions: &n, Parallelism: &parallel, CompletionMode: &indexed, Template: template}},
		metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	err := follow(ctx, c.client.BatchV1().Jobs(ns).Watch, only("scale"), func(e watch.Event) bool {
		j, ok := e.Object.(*batchv1.Job)
		return ok && j.Status.CompletionTime != nil
	})
	return time.Since(began), err
}

func (c *cluster) configMaps(ctx context.Context, ns string, n int) error {
	return c.each(n, func(i int) error {
		_, err := c.client.CoreV1().ConfigMaps(ns).Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c" + strconv.Itoa(i)},
				Data: map[string]string{"a": "b"}}, metav1.CreateOptions{})
		return err
	})
}

// services creates pods on fake nodes behind services, removes all pods from the services, and returns how long
// these writes took and how long after the last one all EndpointSlices were up to date.
func (c *cluster) services(ctx context.Context, ns string, n, pods int) (writing, settling time.Duration, err error) {
	clients, err := c.clients(min(c.writers, 8))
	if err != nil {
		return 0, 0, err
	}
	of := func(i int) map[string]string { return map[string]string{"behind": strconv.Itoa(i % n)} }
	if err := c.each(n, func(i int) error {
		_, err := clients[i%len(clients)].CoreV1().Services(ns).Create(ctx,
			&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s" + strconv.Itoa(i)},
				Spec: corev1.ServiceSpec{Selector: of(i), Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
		return err
	}); err != nil {
		return 0, 0, err
	}
	if err := c.each(pods, func(i int) error {
		t := c.fakePod(of(i))
		_, err := clients[i%len(clients)].CoreV1().Pods(ns).Create(ctx,
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p" + strconv.Itoa(i), Labels: t.Labels}, Spec: t.Spec},
			metav1.CreateOptions{})
		return err
	}); err != nil {
		return 0, 0, err
	}
	if err := c.endpoints(ctx, ns, pods, true); err != nil {
		return 0, 0, fmt.Errorf("before the change: %w", err)
	}
	began := time.Now()
	if err := c.each(pods, func(i int) error {
		return leave(ctx, clients[i%len(clients)], ns, "p"+strconv.Itoa(i))
	}); err != nil {
		return 0, 0, err
	}
	writing = time.Since(began)
	began = time.Now()
	err = c.endpoints(ctx, ns, pods, false)
	return writing, time.Since(began), err
}

// leave removes a pod from its service by its label.
func leave(ctx context.Context, client kubernetes.Interface, ns, name string) error {
	patch := []byte(`{"metadata":{"labels":{"behind":null}}}`)
	_, err := client.CoreV1().Pods(ns).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return err
}

// endpoints waits until the namespace's EndpointSlices have n ready endpoints, or none if ready is false.
func (c *cluster) endpoints(ctx context.Context, ns string, n int, ready bool) error {
	slices := map[string]int{}
	total := 0
	return follow(ctx, c.client.DiscoveryV1().EndpointSlices(ns).Watch, metav1.ListOptions{}, func(e watch.Event) bool {
		s, ok := e.Object.(*discoveryv1.EndpointSlice)
		if !ok {
			return false
		}
		is := 0
		for i := range s.Endpoints {
			if r := s.Endpoints[i].Conditions.Ready; e.Type != watch.Deleted && r != nil && *r {
				is++
			}
		}
		total += is - slices[s.Name]
		slices[s.Name] = is
		return ready && total == n || !ready && total == 0 && len(slices) > 0
	})
}
