"""Clients elsewhere that a server asks by messages, whatever carries these: what Flower and files share.

description         what a client tells the server about its data, and no values
remote_federation   the server's federation, made from the descriptions
order               what the server may ask, and the client's checks of it
refusal             why a client does not follow an order, without values of rows
site                a client's side: its rows, its state, and its answer to an order
clients             the server's side: the executor that makes orders and reads answers
questions           leave-one-out, influence and estimands of a result, by one more round
"""
