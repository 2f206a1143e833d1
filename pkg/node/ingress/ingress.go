// Package ingress serves Ingresses (networking.k8s.io/v1) of the class "coracle" on servers' nodes: HTTP and HTTPS
// on the node's addresses, with the standard library's reverse proxy.
//
// It runs only on servers and reads the Ingresses' Secrets from the server's cache, so that no node needs
// credentials to read them. Its invariant: it listens only while an Ingress of the class exists. An immutable table,
// replaced as a whole, routes requests, so that a change ends no connection.
package ingress

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"runtime"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/client/events"
)

// Class is the name of the IngressClass, Controller its controller. Other classes may name the same controller.
const (
	Class      = "coracle"
	Controller = "coracle.dev/ingress"
)

// Config configures an Ingress.
type Config struct {
	// Client reads Ingresses, Services, EndpointSlices and Secrets, and writes the class, the status of Ingresses,
	// and events.
	Client   client.Interface
	NodeName string
	// Addresses are the addresses to listen on. The first is published in the status of Ingresses, along with the
	// other servers' addresses.
	Addresses []netip.Addr
	// HTTPPort and HTTPSPort are the ports; 0 means none.
	HTTPPort, HTTPSPort uint16
	// Resources are the kinds besides services that Ingresses may name as backends.
	Resources []Resource
	// Disabled means that nothing is served, and that the class is deleted.
	Disabled bool
	// After, if not nil, is closed when the server has started. Run waits for it before it writes the class.
	After <-chan struct{}
	Log   *slog.Logger
}

// Validate checks that the required fields are set.
func (c Config) Validate() error {
	if c.Client == nil || c.Log == nil || c.NodeName == "" || len(c.Addresses) == 0 {
		return errors.New("ingress: Client, Log, NodeName and Addresses are required")
	}
	return nil
}

// Ingress is the component "ingress". It implements run.Component.
type Ingress struct {
	Config
	handler *handler
	events  *events.Recorder
	guard   run.Guard
	// Ready does not wait for listeners.
	run.Readiness
	wake chan struct{} // capacity 1: something changed

	mu      sync.Mutex
	classes map[string]bool // names of classes with our controller
	ours    map[types.NamespacedName]bool
	uses    *table // the last table, whose dependencies decide which events matter
	recheck bool   // our ports may be taken by services or pods

	// Only Run's goroutine uses these.
	informers []func() // functions that end the watches of referenced objects
	server    *server
	shadows   []string                                 // messages about services and pods that take our ports
	reported  map[types.NamespacedName]map[string]bool // problems already reported as events
	parsed    map[types.NamespacedName]parsed          // certificates, by Secret
	turns     turns
	// secured are the transports to TLS backends, by Secret and server name: of the last table, and in nextSecured
	// of the table being built.
	secured, nextSecured map[string]*secured
}

var _ run.Component = (*Ingress)(nil)

// New returns an Ingress. It does nothing until Run is called.
func New(c Config) (*Ingress, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	i := &Ingress{
		Config: c, handler: newHandler(c.Log, c.HTTPSPort != 0, c.HTTPSPort),
		wake:    make(chan struct{}, 1),
		classes: map[string]bool{}, ours: map[types.NamespacedName]bool{}, uses: build(nil, reader{}),
		reported: map[types.NamespacedName]map[string]bool{}, parsed: map[types.NamespacedName]parsed{},
		nextSecured: map[string]*secured{}, turns: newTurns(runtime.GOMAXPROCS(0) / 2),
		events: events.New(c.Client, "coracle-ingress", c.NodeName, c.Log),
	}
	i.guard = run.Guard{Log: c.Log, Component: i.Name()}
	return i, nil
}

// Name implements run.Component.
func (i *Ingress) Name() string { return "ingress" }

// Back-off after a failure, such as a port in use.
const (
	retryFirst = time.Second
	retryMost  = 30 * time.Second
)

// Run implements run.Component.
func (i *Ingress) Run(ctx context.Context) error {
	i.SetReady()
	if i.After != nil {
		select {
		case <-i.After:
		case <-ctx.Done():
			return nil
		}
	}
	if err := i.class(ctx); err != nil && ctx.Err() == nil {
		i.Log.Error("could not write ingress class", "class", Class, "error", err)
	}
	if i.Disabled || i.HTTPPort == 0 && i.HTTPSPort == 0 {
		<-ctx.Done()
		return nil
	}
	defer i.stop()
	for _, w := range []watch{{&networkingv1.IngressClass{}, i.seeClass}, {&networkingv1.Ingress{}, i.seeIngress}} {
		end, err := i.follow(ctx, w)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		defer end()
	}
	retry := retryFirst
	paced(ctx, i.wake, func() (again <-chan time.Time) {
		if err := i.guard.Do("sync", func() { again = i.sync(ctx, &retry) }); err != nil {
			again = time.After(retryMost)
		}
		return again
	})
	return nil
}

// restFactor and restMost limit the part of a core that syncs take while changes do not end, to a fifth: sync builds
// the whole table, and anyone who may change an Ingress or its endpoints can cause one.
const (
	restFactor = 4
	restMost   = 5 * time.Second
)

// paced calls sync at once and whenever wake or the channel that sync returned fires, until ctx is done. A change after
// an idle time waits for nothing.
func paced(ctx context.Context, wake <-chan struct{}, sync func() <-chan time.Time) {
	for {
		began := time.Now()
		again := sync()
		rest := time.NewTimer(min(restFactor*time.Since(began), restMost))
		select {
		case <-wake:
		case <-again:
		case <-ctx.Done():
			rest.Stop()
			return
		}
		select {
		case <-rest.C:
		case <-ctx.Done():
			rest.Stop()
			return
		}
	}
}

// class creates the IngressClass if it is missing, as the default class unless there is another. It does not change
// an existing class. If Ingress is disabled, it deletes the class, so that no new Ingress gets it.
func (i *Ingress) class(ctx context.Context) error {
	var class networkingv1.IngressClass
	err := i.Client.Get(ctx, ctrl.ObjectKey{Name: Class}, &class)
	switch {
	case err == nil && i.Disabled && class.Spec.Controller == Controller:
		return ctrl.IgnoreNotFound(i.Client.Delete(ctx, &class))
	case err == nil || !apierrors.IsNotFound(err) || i.Disabled:
		return ctrl.IgnoreNotFound(err)
	}
	var all networkingv1.IngressClassList
	if err := i.Client.List(ctx, &all); err != nil {
		return err
	}
	isDefault := "true"
	for _, c := range all.Items {
		if c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true" {
			isDefault = "false"
		}
	}
	return ctrl.IgnoreAlreadyExists(i.Client.Create(ctx, &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: Class, Annotations: map[string]string{
			networkingv1.AnnotationIsDefaultIngressClass: isDefault,
			"coracle.dev/description": "Served by the nodes of the servers; agents that joined do not " +
				"listen for it.",
		}},
		Spec: networkingv1.IngressClassSpec{Controller: Controller},
	}))
}

// sync serves the current Ingresses. It returns a channel that fires when to retry, or nil if all went well.
func (i *Ingress) sync(ctx context.Context, retry *time.Duration) <-chan time.Time {
	ingresses, err := i.list(ctx)
	if err == nil {
		if len(ingresses) == 0 {
			i.stop()
			return nil
		}
		err = i.serve(ctx, ingresses)
	}
	if err != nil && ctx.Err() == nil {
		i.Log.Warn("could not serve all of ingress, retrying", "after", *retry, "error", err)
		after := time.After(*retry)
		*retry = min(2**retry, retryMost)
		return after
	}
	*retry = retryFirst
	return nil
}

func (i *Ingress) list(ctx context.Context) ([]*networkingv1.Ingress, error) {
	var all networkingv1.IngressList
	if err := i.Client.Cache().List(ctx, &all); err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	var list []*networkingv1.Ingress
	for n := range all.Items {
		if o := &all.Items[n]; i.isOurs(o) {
			list = append(list, o)
		}
	}
	return list, nil
}

// isOurs reports whether an Ingress has one of our classes. The caller must hold i.mu.
func (i *Ingress) isOurs(o *networkingv1.Ingress) bool {
	if o.Spec.IngressClassName != nil {
		return i.classes[*o.Spec.IngressClassName]
	}
	return i.classes[o.Annotations["kubernetes.io/ingress.class"]]
}

func (i *Ingress) serve(ctx context.Context, ingresses []*networkingv1.Ingress) error {
	if i.informers == nil {
		for _, w := range []watch{
			{&corev1.Service{}, i.seeService},
			{&discoveryv1.EndpointSlice{}, i.seeSlice},
			{&corev1.Secret{}, i.seeSecret},
		} {
			end, err := i.follow(ctx, w)
			if err != nil {
				return err
			}
			i.informers = append(i.informers, end)
		}
		recording, cancel := context.WithCancel(ctx)
		var recorder sync.WaitGroup
		recorder.Go(func() { i.guard.Loop(recording, "events", i.events.Run) })
		i.informers = append(i.informers, func() { cancel(); recorder.Wait() })
	}
	t := i.build(ctx, ingresses)
	i.handler.table.Store(t)
	if i.server == nil {
		i.server = newServer(i.Config, i.handler)
	}
	failed := i.server.listen()
	i.mu.Lock()
	recheck := i.recheck
	i.recheck = false
	i.mu.Unlock()
	if recheck {
		i.shadows = i.shadowed(ctx)
	}
	refused := t.refused
	for _, o := range ingresses {
		name := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
		for _, err := range failed {
			refused[name] = append(refused[name], err.Error())
		}
		refused[name] = append(refused[name], i.shadows...)
	}
	i.report(ingresses, refused)
	return errors.Join(append(failed, i.publish(ctx, ingresses))...)
}

// report records one event for each new problem of an Ingress.
func (i *Ingress) report(ingresses []*networkingv1.Ingress, refused map[types.NamespacedName][]string) {
	reported := map[types.NamespacedName]map[string]bool{}
	for _, o := range ingresses {
		name := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
		for _, text := range refused[name] {
			if reported[name] == nil {
				reported[name] = map[string]bool{}
			}
			if !i.reported[name][text] && !reported[name][text] {
				i.events.Event(o, corev1.EventTypeWarning, "IngressRefused", "not served as asked for: %s", text)
			}
			reported[name][text] = true
		}
	}
	i.reported = reported
}

// stop closes the listeners, waits up to drain for requests, and ends the watches of referenced objects.
func (i *Ingress) stop() {
	if i.server != nil {
		i.server.stop()
		i.server = nil
	}
	for _, end := range i.informers {
		end()
	}
	i.informers = nil
	i.handler.table.Store(build(nil, reader{}))
	i.mu.Lock()
	i.uses = build(nil, reader{})
	i.mu.Unlock()
	i.reported, i.parsed = map[types.NamespacedName]map[string]bool{}, map[types.NamespacedName]parsed{}
	i.keepSecured() // closes all transports, since no table refers to them
	i.handler.transport.CloseIdleConnections()
	i.handler.h2c.CloseIdleConnections()
}
