package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// extensions are groups that run only if -only names them, or beside another cluster.
var extensions = []group{{"custom", customResources}, {"webhook", webhooks}, {"many", manyObjects}}

var (
	definitions = schema.GroupVersionResource{
		Group:    "apiextensions.k8s.io",
		Version:  "v1",
		Resource: "customresourcedefinitions",
	}
	widgets = schema.GroupVersionResource{Group: "bench.example.com", Version: "v1", Resource: "widgets"}
)

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func definition() *unstructured.Unstructured {
	text := map[string]any{"type": "string"}
	spec := map[string]any{"type": "object", "required": []any{"size"}, "properties": map[string]any{
		"size": map[string]any{"type": "integer", "minimum": int64(0)}, "color": text,
		"parts": map[string]any{"type": "array", "items": text},
		"shape": map[string]any{"type": "string", "default": "round"},
	}}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "widgets.bench.example.com"},
		"spec": map[string]any{
			"group": widgets.Group, "scope": "Namespaced", "names": map[string]any{"plural": "widgets", "kind": "Widget"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{
					"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{"spec": spec}},
				}}},
		},
	}}
}

func widget(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "bench.example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": name, "labels": map[string]any{"app": "bench"}},
		"spec":     map[string]any{"size": int64(7), "color": "red", "parts": []any{"a wheel", "another wheel", "an axle"}},
	}}
}

// dynamicClients is clients for dynamic clients.
func (c *cluster) dynamicClients(n int) ([]dynamic.Interface, error) {
	var all []dynamic.Interface
	for range n {
		config := rest.CopyConfig(c.config)
		config.AcceptContentTypes, config.ContentType = "", ""
		config.Dial = newDialer().DialContext
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		all = append(all, client)
	}
	return all, nil
}

// customResources repeats the measurements of objects with custom resources.
func customResources(ctx context.Context, c *cluster) (figures []figure, err error) {
	clients, err := c.dynamicClients(min(c.writers, 8))
	if err != nil {
		return nil, err
	}
	crds := clients[0].Resource(definitions)
	if _, err := crds.Create(ctx, definition(), metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, crds.Delete(context.WithoutCancel(ctx), "widgets.bench.example.com", metav1.DeleteOptions{}))
	}()
	if err := established(ctx, crds); err != nil {
		return nil, err
	}
	return figures, c.within(ctx, func(ns string) error {
		for _, writers := range []int{1, c.writers} {
			n := min(c.objects, 1000)
			if writers > 1 {
				n = c.objects
			}
			took, err := writeWidgets(ctx, clients, ns, fmt.Sprintf("w%d-", writers), n, writers)
			if err != nil {
				return err
			}
			name := "custom resource creates, " + counted(writers, "writer")
			figures = append(figures, figure{Name: name, Value: float64(n) / took.Seconds(), Unit: "/s", More: true})
		}
		var lists, gets []time.Duration
		for range 11 {
			began := time.Now()
			list, err := clients[0].Resource(widgets).Namespace(ns).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			if want := c.objects + min(c.objects, 1000); len(list.Items) != want {
				return fmt.Errorf("the list has %d widgets instead of %d", len(list.Items), want)
			}
			lists = append(lists, time.Since(began))
			for range 20 {
				began := time.Now()
				if _, err := clients[0].Resource(widgets).Namespace(ns).Get(ctx, "w1-1", metav1.GetOptions{}); err != nil {
					return err
				}
				gets = append(gets, time.Since(began))
			}
		}
		figures = append(figures, millis("list of custom resources, with decoding", percentile(lists, 50), 0),
			millis("get of a custom resource", percentile(gets, 50), 0))
		return clients[0].Resource(widgets).Namespace(ns).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	})
}

func established(ctx context.Context, crds dynamic.ResourceInterface) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	open := func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return crds.Watch(ctx, o) }
	return follow(ctx, open, metav1.ListOptions{FieldSelector: "metadata.name=widgets.bench.example.com"},
		func(e watch.Event) bool {
			o, _ := e.Object.(*unstructured.Unstructured)
			if o == nil {
				return false
			}
			conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
			for _, c := range conditions {
				if m, _ := c.(map[string]any); m["type"] == "Established" && m["status"] == "True" {
					return true
				}
			}
			return false
		})
}

func writeWidgets(ctx context.Context, clients []dynamic.Interface, ns, prefix string,
	n, writers int) (time.Duration, error) {
	for _, client := range clients { // connect before measuring
		if err := untilServed(ctx, client.Resource(widgets).Namespace(ns)); err != nil {
			return 0, err
		}
	}
	began := time.Now()
	err := inParallel(writers, n, func(w, i int) error {
		_, err := clients[w%len(clients)].Resource(widgets).Namespace(ns).Create(ctx, widget(prefix+strconv.Itoa(i)),
			metav1.CreateOptions{})
		return err
	})
	return time.Since(began), err
}

// untilServed waits until a kind is served. Upstream serves it some time after its definition is established.
func untilServed(ctx context.Context, api dynamic.ResourceInterface) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := api.List(ctx, metav1.ListOptions{Limit: 1})
		if !apierrors.IsNotFound(err) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func webhooks(ctx context.Context, c *cluster) (figures []figure, err error) {
	url, authority, stop, err := serveWebhook()
	if err != nil {
		return nil, err
	}
	defer stop()
	hooks := c.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	none, fail := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Fail
	_, err = hooks.Create(ctx,
		&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "bench"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name: "bench.example.com", SideEffects: &none, FailurePolicy: &fail, AdmissionReviewVersions: []string{"v1"},
				ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: authority},
				Rules: []admissionregistrationv1.RuleWithOperations{
					{Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
						Rule: admissionregistrationv1.Rule{
							APIGroups:   []string{""},
							APIVersions: []string{"v1"},
							Resources:   []string{"pods"},
						}},
				},
			}}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, hooks.Delete(context.WithoutCancel(ctx), "bench", metav1.DeleteOptions{}))
	}()
	return figures, c.within(ctx, func(ns string) error {
		for _, writers := range []int{1, c.writers} {
			n := min(c.objects, 500*min(writers, 4))
			took, err := c.writeMany(ctx, ns, fmt.Sprintf("hooked-%d-", writers), n, writers)
			if err != nil {
				return err
			}
			name := "pod creates with a webhook, " + counted(writers, "writer")
			figures = append(figures, figure{Name: name, Value: float64(n) / took.Seconds(), Unit: "/s", More: true})
		}
		return nil
	})
}

func serveWebhook() (url string, authority []byte, stop func(), err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		NotAfter:              time.Now().Add(time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return "", nil, nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, nil, err
	}
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var review admissionv1.AdmissionReview
			if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 8<<20)).Decode(&review); err != nil ||
				review.Request == nil {
				http.Error(w, "no review", http.StatusBadRequest)
				return
			}
			review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
			review.Request = nil
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(review)
		}),
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.ServeTLS(l, "", "") }()
	return "https://" + l.Addr().String() + "/", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), func() {
		_ = server.Close()
		<-ended
	}, nil
}
