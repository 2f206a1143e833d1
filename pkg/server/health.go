package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/apiserver"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

// healthKey is read to check that the store responds. Upstream uses the same key. It is never written.
const healthKey = "/registry/health"

// mostLag is how far, in time, the cache may lag behind the store before it is unhealthy.
const mostLag = time.Second

// hooks are upstream's checks of what has started before the API is served: newAPI and the components before it. So
// they never fail.
var hooks = []string{ //nolint:gochecknoglobals // a constant
	"start-apiserver-admission-initializer", "generic-apiserver-start-informers", "storage-readiness",
	"start-apiextensions-informers", "start-apiextensions-controllers", "crd-informer-synced",
	"bootstrap-controller", "start-system-namespaces-controller", "start-service-ip-repair-controllers",
	"scheduling/bootstrap-system-priority-classes", "start-cluster-authentication-info-controller",
	"start-kube-aggregator-informers", "apiservice-registration-controller", "apiservice-discovery-controller",
	"apiservice-status-local-available-controller", "apiservice-status-remote-available-controller",
	"kube-apiserver-autoregistration", "apiservice-openapi-controller", "apiservice-openapiv3-controller",
}

// checks returns the checks of /readyz, with upstream's names where upstream has them. /livez runs the checks with
// Live, which a restart could fix; /healthz runs those with Live or Start.
func (l *plane) checks() []apiserver.Check {
	list := []apiserver.Check{
		{Name: "etcd", Check: l.storeReads, Live: true},
		{Name: "etcd-readiness", Check: l.storeReads},
		{Name: "kms-providers", Check: l.encryption.PluginsHealth},
		{Name: "informer-sync", Check: l.cacheFollows},
		{
			Name:  "poststarthook/rbac/bootstrap-roles",
			Check: started(func() <-chan struct{} { return l.roles.written }),
			Start: true,
		},
		{Name: "autoregister-completion", Check: done, Live: true}, // all groups are routed
	}
	for _, name := range hooks {
		list = append(list, apiserver.Check{Name: "poststarthook/" + name, Check: done, Live: true})
	}
	return append(list, l.actorChecks(config.Controllers)...)
}

// parts returns the components in ComponentStatus, with upstream's names.
func (l *plane) parts() []apiserver.Check {
	list := append(l.actorChecks("controller-manager"), apiserver.Check{Name: "etcd-0", Check: l.storeReads})
	slices.SortFunc(list, func(a, b apiserver.Check) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// actorChecks returns the checks of the controllers and of the scheduler, if they run in this process. The argument
// is the name of the controllers' check.
func (l *plane) actorChecks(controllers string) (list []apiserver.Check) {
	if l.process.Runs(config.Controllers) {
		list = append(list, apiserver.Check{
			Name: controllers, Check: started(func() <-chan struct{} { return l.controllers.Ready() }),
		})
	}
	if l.process.Runs(config.Scheduler) {
		list = append(list, apiserver.Check{
			Name: "scheduler", Check: started(func() <-chan struct{} { return l.scheduler.Ready() }),
		})
	}
	return list
}

// started returns a check that fails until ready's channel is closed. ready is called by each check, because some
// components are created after the API server.
func started(ready func() <-chan struct{}) func(context.Context) error {
	return func(context.Context) error {
		select {
		case <-ready():
			return nil
		default:
			return errors.New("not finished")
		}
	}
}

func done(context.Context) error { return nil }

func (l *plane) storeReads(ctx context.Context) error {
	if _, err := l.store.Get(ctx, healthKey); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return nil
}

func (l *plane) cacheFollows(ctx context.Context) error {
	at, err := l.store.Revision(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, mostLag)
	defer cancel()
	if err := l.cache.WaitFor(ctx, at); err != nil {
		return fmt.Errorf("the cache is at revision %d, the store at %d: %w", l.cache.Revision(), at, err)
	}
	return nil
}
