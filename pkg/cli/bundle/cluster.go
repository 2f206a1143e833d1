package bundle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// mostObjects is the maximum number of objects per list, mostAnswer the maximum size of a response in bytes.
	mostObjects = 2000
	mostAnswer  = 64 << 20
)

// cluster lists nodes, pods and events. It must not read Secrets or ConfigMaps.
func (b *bundle) cluster(ctx context.Context) {
	api, err := b.api()
	if err != nil {
		b.miss("cluster", err)
		return
	}
	b.entry(ctx, "cluster/nodes.json", func(ctx context.Context) ([]byte, error) {
		return list(ctx, api, "/api/v1/nodes", func(l *corev1.NodeList) {
			for i := range l.Items {
				l.Items[i].ManagedFields = nil
			}
		})
	})
	b.entry(ctx, "cluster/pods.json", func(ctx context.Context) ([]byte, error) {
		return list(ctx, api, "/api/v1/pods", func(l *corev1.PodList) {
			for i := range l.Items {
				maskPod(&l.Items[i])
			}
		})
	})
	b.entry(ctx, "cluster/events.json", func(ctx context.Context) ([]byte, error) {
		return list(ctx, api, "/api/v1/events", func(l *corev1.EventList) {
			for i := range l.Items {
				l.Items[i].ManagedFields = nil
			}
		})
	})
}

func (b *bundle) api() (*rest.RESTClient, error) {
	config, err := clientcmd.BuildConfigFromFlags("", b.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("no administrator's kubeconfig: %w", err)
	}
	config.GroupVersion, config.NegotiatedSerializer, config.APIPath = &corev1.SchemeGroupVersion,
		scheme.Codecs.WithoutConversion(), "/api"
	config.QPS, config.Timeout = -1, patience
	return rest.RESTClientFor(config)
}

// list reads a list, applies prepare to it, and returns it as JSON.
func list[L any](ctx context.Context, api *rest.RESTClient, path string, prepare func(*L)) ([]byte, error) {
	answer, err := api.Get().
		AbsPath(path).Param("limit", fmt.Sprint(mostObjects)).SetHeader("Accept", "application/json").Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer answer.Close()
	raw, err := io.ReadAll(io.LimitReader(answer, mostAnswer))
	if err != nil {
		return nil, err
	}
	if len(raw) == mostAnswer {
		return nil, errors.New("the list is too large")
	}
	var l L
	if err := json.Unmarshal(raw, &l); err != nil {
		return nil, err
	}
	prepare(&l)
	return json.MarshalIndent(l, "", " ")
}
