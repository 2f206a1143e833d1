// Command etcd is the program of the database example: etcd as a StatefulSet. "etcd serve" is one member, whose
// name and peers follow from the variables POD_NAME, SERVICE and MEMBERS. "etcd put KEY VALUE", "etcd get KEY" and
// "etcd leader" are clients of the server at ENDPOINT.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
)

const usage = "usage: etcd serve | etcd put KEY VALUE | etcd get KEY | etcd leader"

func main() {
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 1 && args[0] == "serve":
		return serve(ctx)
	case len(args) == 3 && args[0] == "put":
		return with(ctx, func(ctx context.Context, c *clientv3.Client) error {
			_, err := c.Put(ctx, args[1], args[2])
			return err
		})
	case len(args) == 2 && args[0] == "get":
		return with(ctx, func(ctx context.Context, c *clientv3.Client) error { return get(ctx, c, args[1]) })
	case len(args) == 1 && args[0] == "leader":
		return with(ctx, leader)
	}
	return errors.New(usage)
}

func serve(ctx context.Context) error {
	c, err := config(os.Getenv("POD_NAME"), os.Getenv("SERVICE"), os.Getenv("MEMBERS"))
	if err != nil {
		return err
	}
	member, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	defer member.Close()
	select {
	case <-ctx.Done():
		return nil
	case <-member.Server.StopNotify():
		return errors.New("etcd stopped")
	case err := <-member.Err():
		return err
	}
}

func config(pod, service, members string) (*embed.Config, error) {
	count, err := strconv.Atoi(members)
	dash := strings.LastIndexByte(pod, '-')
	if err != nil || count < 1 || dash < 0 || service == "" {
		return nil, errors.New("POD_NAME, SERVICE and MEMBERS are required: the pod's name, the name of its headless " +
			"service, and the number of replicas")
	}
	c := embed.NewConfig()
	c.Name, c.Dir, c.LogLevel = pod, "/data/etcd", "warn"
	var peers []string
	for i := range count {
		name := fmt.Sprintf("%s-%d", pod[:dash], i)
		peers = append(peers, fmt.Sprintf("%s=http://%s.%s:2380", name, name, service))
	}
	c.InitialCluster, c.InitialClusterToken = strings.Join(peers, ","), service
	c.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "0.0.0.0:2380"}}
	c.ListenClientUrls = []url.URL{{Scheme: "http", Host: "0.0.0.0:2379"}}
	c.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: pod + "." + service + ":2380"}}
	c.AdvertiseClientUrls = []url.URL{{Scheme: "http", Host: pod + "." + service + ":2379"}}
	c.AutoCompactionMode, c.AutoCompactionRetention = "revision", "1000"
	return c, nil
}

// with calls a function with a client and a timeout of half a minute.
func with(ctx context.Context, call func(context.Context, *clientv3.Client) error) error {
	endpoint := os.Getenv("ENDPOINT")
	if endpoint == "" {
		endpoint = "http://localhost:2379"
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Context: ctx, DialTimeout: 10 * time.Second})
	if err != nil {
		return err
	}
	defer c.Close()
	return call(ctx, c)
}

func get(ctx context.Context, c *clientv3.Client, key string) error {
	answer, err := c.Get(ctx, key)
	if err != nil {
		return err
	}
	if len(answer.Kvs) == 0 {
		return fmt.Errorf("key %q does not exist", key)
	}
	fmt.Printf("%s\n", answer.Kvs[0].Value)
	return nil
}

func leader(ctx context.Context, c *clientv3.Client) error {
	status, err := c.Status(ctx, c.Endpoints()[0])
	if err != nil {
		return err
	}
	members, err := c.MemberList(ctx)
	if err != nil {
		return err
	}
	for _, m := range members.Members {
		if m.ID == status.Leader {
			fmt.Println(m.Name)
			return nil
		}
	}
	return errors.New("the cluster has no leader")
}
