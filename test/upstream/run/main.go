// Command run runs upstream's programs until it is interrupted, for scripts and trials by hand:
//
//	go run ./test/upstream/run -dir /tmp/up [-controllers] [-scheduler]
//
// It prints `export KUBECONFIG=FILE` when the API server is ready. `make upstream` compiles the programs.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/coracle-dev/coracle/test/upstream"
)

func main() {
	log.SetFlags(0)
	var c upstream.Config
	flag.StringVar(&c.Programs, "programs", "dist/upstream", "folder with the programs")
	flag.StringVar(&c.Dir, "dir", "", "folder for data, keys and logs")
	flag.StringVar(&c.Keys, "keys", "", "folder with a Coracle server's keys (DATA/pki), to continue its cluster")
	flag.StringVar(&c.Data, "data", "", "etcd's data directory (default in -dir)")
	flag.StringVar(&c.EtcdURL, "etcd", "", "URL of an etcd that runs already")
	flag.StringVar(&c.Address, "address", "127.0.0.1", "address of this machine")
	flag.IntVar(&c.Port, "port", 7443, "port of the API server")
	flag.BoolVar(&c.Controllers, "controllers", false, "run kube-controller-manager")
	flag.BoolVar(&c.Scheduler, "scheduler", false, "run kube-scheduler")
	bare := flag.Bool("without-service-accounts", false,
		"admit pods without service accounts, which do not exist without controllers")
	flag.Parse()
	if *bare {
		c.Flags = map[string][]string{upstream.APIServer: {"--disable-admission-plugins=ServiceAccount"}}
	}
	if c.Dir == "" || flag.NArg() > 0 {
		log.Fatal("usage: run -dir DIR [flags]; see run -help")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c); err != nil {
		stop()
		log.Fatal(err)
	}
}

func run(ctx context.Context, c upstream.Config) error {
	cluster, err := upstream.Start(ctx, c)
	if err != nil {
		return err
	}
	for name, pid := range cluster.PIDs() {
		fmt.Printf("# %s: process %d\n", name, pid)
	}
	fmt.Printf("export KUBECONFIG=%s\n", cluster.Kubeconfig)
	<-ctx.Done()
	return cluster.Stop()
}
