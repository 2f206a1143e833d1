package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// loop measures a plain controller-runtime reconciler that applies the same objects to the same target with
// Kontrol's concurrency, and applies all of them again at each resync.
func (k *kontrolBench) loop(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	n := k.options.resources
	log.SetLogger(logr.Discard())
	m, err := manager.New(k.targetConfig, manager.Options{
		Logger: logr.Discard(), Metrics: server.Options{BindAddress: "0"},
		Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{kontrolName: {}}},
	})
	if err != nil {
		return err
	}
	resync, done := make(chan event.GenericEvent, n), make(chan struct{}, n)
	reconciler := reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
		if !strings.HasPrefix(r.Name, "loop-") {
			return reconcile.Result{}, nil
		}
		raw, err := json.Marshal(configMap(r.Name, "1"))
		if err != nil {
			return reconcile.Result{}, err
		}
		m := m.GetClient()
		o := &corev1.ConfigMap{}
		o.Name, o.Namespace = r.Name, r.Namespace
		if err := m.Patch(ctx, o, client.RawPatch(types.ApplyPatchType, raw), client.FieldOwner("loop"),
			client.ForceOwnership); err != nil {
			return reconcile.Result{}, err
		}
		done <- struct{}{}
		return reconcile.Result{}, nil
	})
	yes := true
	c, err := controller.New("bench", m, controller.Options{
		MaxConcurrentReconciles: 8,
		Reconciler:              reconciler,
		SkipNameValidation:      &yes,
		LogConstructor:          func(*reconcile.Request) logr.Logger { return logr.Discard() },
	})
	if err == nil {
		err = c.Watch(source.Channel(resync, &handler.EnqueueRequestForObject{}))
	}
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cancel(m.Start(ctx))
	}()
	defer func() { <-ended }()
	defer cancel(nil)
	select {
	case <-m.Elected():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for _, what := range []string{"new objects", "a resync"} {
		began, used := time.Now(), k.used()
		for i := range n {
			o := &corev1.ConfigMap{}
			o.Name, o.Namespace = "loop-"+strconv.Itoa(i), kontrolName
			resync <- event.GenericEvent{Object: o}
		}
		for range n {
			select {
			case <-done:
			case <-ctx.Done():
				return errors.Join(ctx.Err(), context.Cause(ctx))
			}
		}
		k.add(figure{
			Name:  fmt.Sprintf("controller-runtime loop, applies of %d, %s", n, what),
			Value: float64(n) / time.Since(began).Seconds(),
			Unit:  "/s",
			More:  true,
		})
		k.per(n, "apply", used)
	}
	return nil
}

// plainWriters is how many requests the plain loop sends concurrently.
const plainWriters = 32

// plain measures a loop that only sends the same applies to the same target: the limit of the target and this machine.
func (k *kontrolBench) plain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, kontrolTime)
	defer cancel()
	n := k.options.resources
	force := true
	for _, what := range []string{"new objects", "a resync"} {
		began, used := time.Now(), k.used()
		if err := inParallel(plainWriters, n, func(_, i int) error {
			name := "plain-" + strconv.Itoa(i)
			raw, err := json.Marshal(configMap(name, "1"))
			if err != nil {
				return err
			}
			_, err = k.target.CoreV1().ConfigMaps(kontrolName).Patch(ctx, name, types.ApplyPatchType, raw, metav1.PatchOptions{
				FieldManager: "plain", Force: &force,
			})
			return err
		}); err != nil {
			return err
		}
		k.add(figure{
			Name:  fmt.Sprintf("plain client-go loop, %d at a time, applies of %d, %s", plainWriters, n, what),
			Value: float64(n) / time.Since(began).Seconds(),
			Unit:  "/s",
			More:  true,
		})
		k.per(n, "apply", used)
	}
	return nil
}
